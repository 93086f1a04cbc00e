"""
HTTP: one request per event, acknowledged by its 2xx.

The requests of a call run on several threads, with a limit for each endpoint. An endpoint that does
not answer is given up for the rest of the call. `Destinations` then parks it.
"""

import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.errors import OutboxError, PublisherError
from outbox_core.model.attempt import ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.destinations import Destinations
from outbox_relay.publishers.egress import Address, Blocked
from outbox_relay.publishers.http.check import check_http
from outbox_relay.publishers.http.connections import Lines
from outbox_relay.publishers.http.documents import Unfit
from outbox_relay.publishers.http.errors import (
    Answer,
    Closed,
    failure,
    is_answer,
    outcome_of,
    outcome_of_check,
)
from outbox_relay.publishers.http.messages import HeaderWriter, Messages, Request
from outbox_relay.publishers.http.schedule import Schedule
from outbox_relay.publishers.http.secrets import tls_files
from outbox_relay.publishers.http.signing import SIGNATURE_HEADERS, Authorization, Signer
from outbox_relay.publishers.http.urls import Endpoint, Place, egress, place_of
from outbox_relay.publishers.messages import refused
from outbox_relay.publishers.parking import Parked
from outbox_relay.publishers.protocol import CheckResult, Sample

PROBE_SECONDS: Final = 5.0
REPORT_SECONDS: Final = 2.0
MOST_THREADS: Final = 512
"""At most, and more than workers times concurrency can use: a thread is made when needed."""
PUBLISHER_CLOSED: Final = Unsent("the publisher is closed")


class HttpPublisher:
    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._messages = Messages(settings)
        self._sign = None if settings.signing is None else Signer(settings.signing)
        self._authorization = None if settings.auth is None else Authorization(settings.auth)
        self._writer = HeaderWriter(
            settings,
            (*(SIGNATURE_HEADERS if self._sign else ()),)
            + (("authorization",) if self._authorization else ()),
        )
        self._egress = {trusted: egress(settings, trusted) for trusted in (False, True)}
        self._lines = Lines(self._resolve, tls_files(settings.tls).get)
        self._no_answer = (
            ErrorClass.DESTINATION if settings.hosts_from_events else ErrorClass.OUTAGE
        )
        self._timeout = settings.delivery_timeout.total_seconds()
        self._per_request = settings.timeout.total_seconds()
        self._endpoints = Destinations(
            self._endpoint_name,
            self._deliver,
            self._timeout,
            time.monotonic,
            brief_trials=settings.hosts_from_events,  # otherwise there are no others to hold up
            is_answer=is_answer,
        )
        self._call = threading.local()
        self._helpers = ThreadPoolExecutor(MOST_THREADS, "http")
        self._changed = threading.Condition()
        self._calls = 0
        self._stop_at: float | None = None

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        # Each request is made once: while any endpoint is parked, the endpoint of every event is
        # needed.
        self._call.requests = {id(claim): self._messages.request(claim) for claim in batch}
        try:
            return self._endpoints.publish(batch)
        finally:
            self._call.requests = {}

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return self._endpoints.blame(batch, outcomes)

    def parked(self) -> Sequence[Parked]:
        return self._endpoints.parked()

    def route(self, claim: Claim) -> Hashable | None:
        """Requests overtake each other."""
        return None

    def probe(self) -> None:
        if self._settings.hosts_from_events or self._settings.url is None:
            return  # there is no server that all of them need
        endpoint = place_of(self._settings.url.split("{")[0], trusted=True).endpoint
        self._connect(endpoint)

    def check(self, samples: Sequence[Sample]) -> Sequence[CheckResult]:
        return check_http(self._settings, samples, self._connect)

    def close(self, timeout: timedelta) -> None:
        seconds = timeout.total_seconds()
        with self._changed:
            self._stop_at = time.monotonic() + seconds
            self._lines.watchdog.limit(self._stop_at)
            self._changed.wait_for(lambda: self._calls == 0, seconds)
        self._helpers.shutdown(wait=False)
        self._lines.close()
        with self._changed:  # what was cut still has to be reported
            self._changed.wait_for(lambda: self._calls == 0, REPORT_SECONDS)

    def _deliver(self, batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        with self._changed:
            if self._stop_at is not None:
                return [PUBLISHER_CLOSED] * len(batch)
            self._calls += 1
        try:
            requests = [self._request(claim) for claim in batch]
            if patience is not None and self._settings.hosts_from_events:
                trial = Schedule.trial(requests, self._settings, patience)
                self._start(trial, trial.threads)
                return trial.leave(patience, self._no_answer, self._heard)
            seconds = self._timeout if patience is None else min(self._timeout, patience)
            schedule = Schedule.call(requests, self._settings, seconds)
            self._start(schedule, schedule.threads - 1)  # this one works too
            return schedule.finish(self._send)
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _request(self, claim: Claim) -> Request | Refused:
        made: Mapping[int, Request | Refused] = getattr(self._call, "requests", {})
        return made.get(id(claim)) or self._messages.request(claim)

    def _endpoint_name(self, claim: Claim) -> str | None:
        """None if it has none."""
        made = self._request(claim)
        return None if isinstance(made, Refused) else made.place.endpoint.name

    def _start(self, schedule: Schedule, threads: int) -> None:
        with suppress(RuntimeError):  # closed meanwhile: the threads that still run finish it
            for _ in range(threads):
                self._helpers.submit(schedule.run, self._send)

    def _heard(self, request: Request, outcome: Outcome) -> None:
        self._endpoints.heard(request.claim, outcome)

    def _send(self, request: Request, until: float) -> Outcome:
        """One attempt."""
        if self._stop_at is not None:
            return PUBLISHER_CLOSED
        deadline = min(until, time.monotonic() + self._per_request)
        if (asked := self._ask(request, deadline)) is not None:
            return asked
        lines = self._lines_of(request)
        try:
            head = self._writer.head(request, lines)
        except (Unfit, UnicodeError) as error:
            return refused(getattr(error, "code", "INVALID_HEADER"), str(error))
        answer = self._exchange(request.place, head, request.body, request.method, deadline)
        return outcome_of(answer, datetime.now(UTC)) if isinstance(answer, Answer) else answer

    def _ask(self, request: Request, deadline: float) -> Outcome | None:
        """Ask the check whether it has arrived. None: it has not, or there is nothing to ask."""
        claim = request.claim
        if claim.attempts == 1 or claim.was_published:
            return None
        place = self._messages.check(request)
        if place is None or isinstance(place, Refused):
            return place
        question = self._writer.question(place, self._login())
        answer = self._exchange(place, question, b"", "GET", deadline)
        return outcome_of_check(answer, datetime.now(UTC)) if isinstance(answer, Answer) else answer

    def _exchange(
        self, place: Place, head: bytes, body: bytes, method: str, deadline: float
    ) -> Answer | Refused | Unsent:
        endpoint = place.endpoint
        try:
            line = self._lines.take(endpoint, deadline)
        except Blocked as error:
            return refused("BLOCKED", str(error))
        except Closed:
            return PUBLISHER_CLOSED
        except Exception as error:
            return failure(error, f"no connection to {endpoint.name}", self._no_answer)
        try:
            answer, reusable = line.exchange(head, body, method, deadline)
        except Closed:  # while its name was resolved, or the connection made
            line.close()
            return PUBLISHER_CLOSED
        except Exception as error:
            line.close()
            return failure(error, endpoint.name, self._no_answer, self._hide)
        if reusable:
            self._lines.give_back(line)
        else:
            line.close()
        return answer._replace(body=self._hide(answer.body))

    def _hide(self, text: bytes) -> bytes:
        for secret in (self._authorization, self._sign):
            if secret is not None:
                text = secret.hide(text)
        return text

    def _lines_of(self, request: Request) -> list[tuple[str, str]]:
        lines = self._login()
        if self._sign is not None:
            lines += self._sign(request.claim.event_id, int(time.time()), request.body)
        return lines

    def _login(self) -> list[tuple[str, str]]:
        if self._authorization is None:
            return []
        return [("authorization", self._authorization())]

    def _resolve(self, endpoint: Endpoint) -> Sequence[Address]:
        return self._egress[endpoint.trusted].resolve(endpoint.host, endpoint.port)

    def _connect(self, endpoint: Endpoint) -> None:
        """PublisherError with the reason if it does not answer."""
        try:
            line = self._lines.open(endpoint, time.monotonic() + PROBE_SECONDS)
        except OutboxError:
            raise
        except Exception as error:
            where = f"no connection to {endpoint.name}"
            text = str(error) if isinstance(error, Blocked) else None
            why = text or failure(error, where, self._no_answer).error.text
            raise PublisherError(why) from None
        self._lines.give_back(line)
