"""
Endpoints that accept a connection and say nothing: what the others feel of them.

Judged by how long calls are held by trials, and not by a rate, which a busy machine decides.
`bench.endpoints` measures the rate.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest

from broker.http.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services import wait_until
from dev.services.http import Got, Handler, HttpServer, Misbehave, Reply
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.http import documents
from outbox_relay.publishers.http.publisher import HttpPublisher

pytestmark = pytest.mark.http

BY_PAYLOAD: dict[str, Any] = {
    "request": "Payload",
    "allowedHosts": ["127.0.0.1"],
    "allowedNetworks": ["127.0.0.0/8"],
}
FIRST_PAUSE_SECONDS = 0.5


def call_to(url: str, **fields: Any) -> Claim:
    return make_claim(json.dumps({"url": f"{url}/", "body": 1}).encode(), **fields)


class Sick(HttpServer):
    """Silent, until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Got] = []
        self.answer = self._hang

    def _hang(self, got: Got) -> Reply | Misbehave:
        self.asked.append(got)
        return Misbehave(Handler.hang)


def park(publisher: HttpPublisher, batch: Sequence[Claim], count: int) -> None:
    publisher.publish(batch)
    assert len(publisher.parked()) == count


def publish_for(
    publisher: HttpPublisher, batch: Sequence[Claim], seconds: float
) -> tuple[float, int]:
    """How long calls took in which the sick were tried, and how many such calls there were. The
    first of the batch is for somebody who is well."""
    held, trials = 0.0, 0
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        outcomes = publisher.publish(batch)
        if any(isinstance(o, Refused) for o in outcomes[1:]):
            held += time.monotonic() - began
            trials += 1
        assert isinstance(outcomes[0], Acked)
    return held, trials


@pytest.mark.parametrize("silent", [1, 10])
def test_trials_of_silent_endpoints_hold_calls_for_a_small_part_of_the_time(
    http_server: HttpServer, make_publisher: MakePublisher, silent: int
) -> None:
    publisher = make_publisher(timeout="2s", deliveryTimeout="10s", **BY_PAYLOAD)
    with ExitStack() as stack:
        sick = [stack.enter_context(Sick()) for _ in range(silent)]
        batch = [call_to(http_server.url), *(call_to(s.url) for s in sick)]
        park(publisher, batch, silent)
        held, trials = publish_for(publisher, batch, 6.0)
        # If trials held a call for as long as the pause before them, it would be most of the time.
        assert trials <= 2
        assert held < 2.5
        assert len(publisher.parked()) == silent
        assert all(len(s.asked) <= 2 + 4 for s in sick)  # side by side, and one event of each


def test_a_trial_waits_a_moment_and_its_event_until_it_is_over(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(timeout="4s", **BY_PAYLOAD)
    with Sick() as sick:
        batch = [call_to(http_server.url), *(call_to(sick.url) for _ in range(5))]
        park(publisher, batch, 1)
        asked = len(sick.asked)
        wait_until(lambda: time_of_trial(publisher, batch), 10, "a trial")
        assert len(sick.asked) == asked + 1  # one at a time
        # While it is under way, nobody else tries: not even when the pause would be over.
        began = time.monotonic()
        while time.monotonic() - began < 2 * FIRST_PAUSE_SECONDS:
            publisher.publish(batch)
        assert len(sick.asked) == asked + 1


def time_of_trial(publisher: HttpPublisher, batch: Sequence[Claim]) -> bool:
    began = time.monotonic()
    outcomes = publisher.publish(batch)
    took = time.monotonic() - began
    tried = [o for o in outcomes if isinstance(o, Refused)]
    if not tried:
        return False
    (slow,) = tried
    assert (slow.error.kind, slow.error.code) == (ErrorClass.DESTINATION, "TIMEOUT")
    assert took < 2
    # It is claimed again only when its first request has surely ended.
    assert 4 - took - 0.1 <= slow.after <= 4
    assert sum(isinstance(o, Unsent) for o in outcomes) == 4
    return True


@pytest.mark.parametrize("status", [200, 404, 429])
def test_whoever_answers_a_trial_late_is_well_again(
    http_server: HttpServer, make_publisher: MakePublisher, status: int
) -> None:
    publisher = make_publisher(timeout="8s", **BY_PAYLOAD)
    go_on = threading.Event()
    with HttpServer() as slow:

        def away(got: Got) -> Reply:
            return Reply(503)

        def late(got: Got) -> Reply:
            go_on.wait(20)
            return Reply(status)

        slow.answer = away
        batch = [call_to(http_server.url), call_to(slow.url)]
        park(publisher, batch, 1)
        slow.answer = late

        def tried() -> Outcome | None:
            outcome = publisher.publish(batch)[1]
            return outcome if isinstance(outcome, Refused) else None

        wait_until(tried, 10, "a trial")
        assert len(publisher.parked()) == 1
        go_on.set()
        wait_until(lambda: not publisher.parked(), 5, "its answer is heard")


def test_patience_that_is_asked_for_late_is_given(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(timeout="8s", **BY_PAYLOAD)
    go_on, said = threading.Event(), threading.Event()
    with HttpServer() as slow:
        slow.answer = lambda got: Reply(503)
        batch = [call_to(http_server.url), call_to(slow.url)]
        park(publisher, batch, 1)

        def late(got: Got) -> Reply:
            said.set()
            go_on.wait(20)
            return Reply(503, headers={"retry-after": "200"})

        slow.answer = late
        wait_until(lambda: publisher.publish(batch) and said.is_set(), 10, "a trial")
        go_on.set()

        def patient() -> bool:
            outcome = publisher.publish(batch)[1]
            return isinstance(outcome, Unsent) and outcome.after > 150

        wait_until(patient, 5, "it is left alone for as long as it asked")


@contextmanager
def mute_listener() -> Iterator[int]:
    """Where the kernel accepts connections, and nobody ever says a word of TLS."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


def test_a_handshake_that_never_ends_holds_no_call_either(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(timeout="2s", **BY_PAYLOAD)
    with mute_listener() as port:
        batch = [call_to(http_server.url), call_to(f"https://127.0.0.1:{port}")]
        park(publisher, batch, 1)
        held, trials = publish_for(publisher, batch, 4.0)
        assert trials == 1
        assert held < 1.5


def test_close_ends_a_trial_that_nobody_waits_for(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(timeout="9s", deliveryTimeout="20s", **BY_PAYLOAD)
    ended = threading.Event()
    with HttpServer() as sick:
        sick.answer = lambda got: Reply(503)
        batch = [call_to(http_server.url), call_to(sick.url)]
        park(publisher, batch, 1)

        def until_cut(handler: Handler) -> None:
            handler.connection.settimeout(15)
            if not handler.connection.recv(1):
                ended.set()

        sick.answer = lambda got: Misbehave(until_cut)
        wait_until(lambda: isinstance(publisher.publish(batch)[1], Refused), 10, "a trial")
        publisher.close(timedelta(0))
        assert ended.wait(5)


def test_an_endpoint_that_recovers_takes_the_events_of_its_trial_in_order(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    """And each once: whoever answers within the moment has nothing sent again."""
    publisher = make_publisher(timeout="4s", **BY_PAYLOAD)
    with HttpServer() as back:
        back.answer = lambda got: Reply(503)
        sent = [
            make_claim(json.dumps({"url": f"{back.url}/", "body": n}).encode()) for n in range(5)
        ]
        batch = [call_to(http_server.url), *sent]
        park(publisher, batch, 1)
        back.answer = lambda got: Reply()
        acked: list[int] = []

        def tried() -> bool:
            outcomes = publisher.publish(batch)[1:]
            acked.extend(n for n, o in enumerate(outcomes) if isinstance(o, Acked))
            return bool(acked)

        wait_until(tried, 10, "a trial")
        assert [int(got.body) for got in back.got] == acked == list(range(len(acked)))
        assert publisher.parked() == []


def test_an_event_is_read_once_also_while_an_endpoint_is_parked(
    http_server: HttpServer, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its endpoint's name is needed for every event then; to read them again took half the rate."""
    publisher = make_publisher(**BY_PAYLOAD)
    with HttpServer() as sick:
        sick.answer = lambda got: Reply(503, headers={"retry-after": "60"})
        batch = [call_to(http_server.url), call_to(sick.url)]
        park(publisher, batch, 1)
        read: list[str] = []
        usual = documents.read

        def note(claim: Claim) -> Mapping[str, Any]:
            read.append(claim.event_id)
            return usual(claim)

        monkeypatch.setattr(documents, "read", note)
        assert [type(o) for o in publisher.publish(batch)] == [Acked, Unsent]
        assert sorted(read) == sorted(claim.event_id for claim in batch)
