"""
Whose turn it is: the requests of one call, endpoint by endpoint, on several threads.

Every endpoint has a queue and may have a few requests in flight; threads take from the queues in
turn. A thread that finds nothing to start ends: whatever is left belongs to endpoints that are at
their limit, and the threads that wait for their answers go on with it.

A trial of parked endpoints has one request of each in flight, and its caller waits only for a
moment. Requests without an answer by then go on in the background, for as long as any request may
take: so a slow endpoint is found to be well, and a silent one holds up no others.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Self

from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.model.attempt import Error, ErrorClass, Outcome, Refused, Unsent
from outbox_relay.publishers.http.messages import Request
from outbox_relay.publishers.http.urls import Endpoint

log = logging.getLogger(__name__)

Send = Callable[[Request, float], Outcome]
"""A request, and when the call ends."""

Late = Callable[[Request, Outcome], None]
"""A request, and an outcome that came after its call."""

LEAST_SECONDS: Final = 1.0
"""With less left, a request is not begun: it would be cut, and the endpoint blamed."""
LOST_IN_A_ROW: Final = 3
"""After so many lost connections or 503s, the endpoint is given up for this call."""
NO_TIME: Final = Unsent("there was no time left for it")


class _Queue:
    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.in_flight = 0
        self.lost_in_a_row = 0
        self.given_up: Unsent | None = None


class Schedule:
    def __init__(
        self,
        requests: Sequence[Request | Refused],
        concurrency: int,
        per_endpoint: int,
        until: float,
        last_start: float,
    ) -> None:
        """`until` is when a request in flight is given up. After `last_start`, none is begun."""
        self._requests = requests
        self._until = until
        self._last_start = last_start
        self._per_endpoint = per_endpoint
        self._outcomes: list[Outcome | None] = [None] * len(requests)
        self._queues: dict[Endpoint, _Queue] = {}
        for index, request in enumerate(requests):
            if isinstance(request, Refused):
                self._outcomes[index] = request
            else:
                queue = self._queues.setdefault(request.place.endpoint, _Queue())
                queue.waiting.append(index)
        self._ready = deque(self._queues.values())
        self._in_flight = 0
        self._left: Late | None = None
        self._changed = threading.Condition()
        possible = sum(min(self._per_endpoint, len(q.waiting)) for q in self._queues.values())
        self.threads = min(concurrency, possible)

    @classmethod
    def call(
        cls, requests: Sequence[Request | Refused], settings: HttpSettings, seconds: float
    ) -> Self:
        until = time.monotonic() + seconds
        last_start = until - min(LEAST_SECONDS, seconds / 2)
        return cls(requests, settings.concurrency, settings.per_endpoint, until, last_start)

    @classmethod
    def trial(
        cls, requests: Sequence[Request | Refused], settings: HttpSettings, patience: float
    ) -> Self:
        now = time.monotonic()
        until = now + settings.timeout.total_seconds()
        return cls(requests, settings.concurrency, 1, until, now + patience / 2)

    def finish(self, send: Send) -> Sequence[Outcome]:
        """Work until nothing is left and nothing is in flight."""
        self.run(send)
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight == 0)
        assert None not in self._outcomes
        return self._outcomes  # type: ignore[return-value]

    def leave(self, patience: float, no_answer: ErrorClass, late: Late) -> Sequence[Outcome]:
        """Wait until nothing is left, but not longer than this. What is in flight then is in doubt,
        and is not to be sent again before it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: None not in self._outcomes, patience)
            after = max(0.0, self._until - time.monotonic())
            text = f"no answer within {patience:.1f} s, in a trial of a parked endpoint"
            slow = Refused(Error.of(no_answer, "TIMEOUT", text), after)
            waiting = {index for queue in self._queues.values() for index in queue.waiting}
            for queue in self._queues.values():
                queue.waiting.clear()
            self._ready.clear()
            self._left = late
            return [
                (NO_TIME if index in waiting else slow) if outcome is None else outcome
                for index, outcome in enumerate(self._outcomes)
            ]

    def run(self, send: Send) -> None:
        """May run on any number of threads: those too many find nothing to do."""
        queue: _Queue | None = None
        index = -1
        outcome: Outcome | None = None
        while True:
            with self._changed:
                if queue is not None and outcome is not None:
                    self._done(queue, index, outcome)
                late = self._left
                if late is not None or not self._ready:
                    break
                queue = self._ready.popleft()
                index = queue.waiting.popleft()
                queue.in_flight += 1
                self._in_flight += 1
                if queue.waiting and queue.in_flight < self._per_endpoint:
                    self._ready.append(queue)
                in_time = time.monotonic() < self._last_start
            request = self._requests[index]
            assert isinstance(request, Request)
            outcome = queue.given_up or (self._try(send, request) if in_time else NO_TIME)
        if late is not None and outcome is not None:
            request = self._requests[index]
            assert isinstance(request, Request)
            late(request, outcome)

    def _try(self, send: Send, request: Request) -> Outcome:
        try:
            return send(request, self._until)
        except Exception as error:  # a defect; without an outcome the call would never end
            log.exception("an event could not be sent", extra={"event": "defect"})
            return Refused(Error.of(ErrorClass.TRANSIENT, "DEFECT", repr(error)))

    def _done(self, queue: _Queue, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        self._note(queue, outcome)
        # It was at its limit, and so not in `_ready`.
        if queue.waiting and queue.in_flight == self._per_endpoint:
            self._ready.append(queue)
        queue.in_flight -= 1
        self._in_flight -= 1
        if self._in_flight == 0:
            self._changed.notify_all()

    def _note(self, queue: _Queue, outcome: Outcome) -> None:
        """Decide whether more of its events are worth a try in this call."""
        match outcome:
            case Refused(error, after) if after > 0:
                queue.given_up = Unsent(f"its endpoint asked us to wait: {error.code}", after)
            case Refused(error, _) if error.kind in (ErrorClass.OUTAGE, ErrorClass.DESTINATION):
                queue.lost_in_a_row += 1
                lost = error.code == "CONNECTION_LOST" or error.code.startswith("HTTP_")
                if not lost or queue.lost_in_a_row >= LOST_IN_A_ROW:
                    queue.given_up = Unsent(f"its endpoint does not answer: {error.code}")
            case Refused() | Unsent():
                pass
            case _:
                queue.lost_in_a_row = 0
