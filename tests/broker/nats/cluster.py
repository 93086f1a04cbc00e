"""Three servers that a test may kill, freeze and cut off, and draining events to them meanwhile."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Self

from broker.nats.streams import Admin, NoAnswer, Stored
from conformance.publisher_contract import make_claim
from dev.services import wait_until
from dev.services.nats import Nats, NatsCluster
from outbox_core.model.attempt import Acked, Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.nats.publisher import NatsPublisher

ELECTION_SECONDS = 60
"""Ten by the servers' own clocks, which a busy machine slows down."""
KEYS = 10
BATCH = 50
PAUSE_SECONDS = 0.05
"""Between two batches: it is the faults that are tested, not the speed."""


class Cluster(NatsCluster):
    def admin(self) -> Admin:
        """Asks a server that is well. Without a leader, it may say nothing."""
        well = next(n for n in self.nodes.values() if n.answers and n is not self.alone)
        return Admin(well, patience_seconds=2)

    def make_stream(self, **config: Any) -> str:
        """With three replicas, when there are so many servers."""
        made: list[str] = []

        def make() -> bool:
            with suppress(NoAnswer, AssertionError):
                made.append(self.admin().make(num_replicas=3, **config))
            return bool(made)

        wait_until(make, ELECTION_SECONDS, "a stream with three replicas")
        self.wait_until_whole(made[0])
        return made[0]

    def leader(self, stream: str) -> Nats:
        """When it has one."""
        found: list[Nats] = []

        def look() -> bool:
            name = self._members(stream).get("leader")
            found[:] = [self.nodes[name]] if name else []
            return bool(found)

        wait_until(look, ELECTION_SECONDS, f"a leader of {stream}")
        return found[0]

    def followers(self, stream: str) -> list[Nats]:
        leader = self.leader(stream)
        return [node for node in self.nodes.values() if node is not leader]

    def wait_until_whole(self, stream: str) -> None:
        """Led, and every replica has all of it."""

        def whole() -> bool:
            replicas = self._members(stream).get("replicas") or []
            return len(replicas) == 2 and all(replica["current"] for replica in replicas)

        wait_until(whole, ELECTION_SECONDS, f"all replicas of {stream}")

    def stored(self, stream: str, n: int) -> list[Stored]:
        """When all are well again: a leader that was frozen believes for a while that it leads."""
        self.heal()
        self.wait_until_whole(stream)
        found: list[list[Stored]] = []

        def read() -> bool:
            with suppress(NoAnswer):
                found.append(self.admin().received(stream, n))
            return bool(found)

        wait_until(read, ELECTION_SECONDS, f"reading {stream}")
        return found[0]

    def step_down(self, stream: str) -> None:
        """Another server leads it, and nothing has failed."""
        before = self.leader(stream)
        with suppress(NoAnswer):
            self.admin().ask((f"STREAM.LEADER.STEPDOWN.{stream}", None))
        wait_until(
            lambda: self.leader(stream) is not before, ELECTION_SECONDS, f"a new leader of {stream}"
        )

    def _members(self, stream: str) -> dict[str, Any]:
        """Empty while nobody leads it."""
        try:
            (answer,) = self.admin().ask((f"STREAM.INFO.{stream}", None))
        except NoAnswer:
            return {}
        found = answer.get("cluster", {})
        assert isinstance(found, dict)
        return found


@dataclass
class Drain:
    """
    Publishes new events by a thread of its own for as long as the block lasts, and then what is
    left. As a relay does: what was not acknowledged is sent again, in its order.
    """

    publisher: NatsPublisher
    claims: list[Claim] = field(default_factory=list)
    acked: set[str] = field(default_factory=set)
    refusals: Counter[str] = field(default_factory=Counter)
    """Class and code of each."""
    longest_call_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._more = self._running = True
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.go_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._more = False
        try:
            if kind is None:
                self._wait(lambda: len(self.acked) == len(self.claims))
        finally:
            self._running = False
            self._thread.join(30)
        print(f"{len(self.claims)} events, {dict(self.refusals)}")

    def go_on(self) -> None:
        """Some more are acknowledged."""
        wanted = len(self.acked) + 10 * BATCH
        self._wait(lambda: len(self.acked) >= wanted)

    @property
    def charged(self) -> list[str]:
        """The refusals that cost events their attempts."""
        return [name for name in self.refusals if not name.startswith(("OUTAGE", "DESTINATION"))]

    def _wait(self, predicate: Callable[[], bool]) -> None:
        try:
            wait_until(predicate, 90, "acknowledged")
        except TimeoutError:
            raise AssertionError(f"{len(self.acked)} acknowledged, {self.refusals}") from None

    def _run(self) -> None:
        left: list[Claim] = []
        while self._running:
            if self._more and len(left) < BATCH:
                new = [self._event(len(self.claims) + n) for n in range(BATCH)]
                self.claims += new
                left += new
            self._publish(left[:BATCH])
            left = [claim for claim in left if claim.event_id not in self.acked]
            time.sleep(PAUSE_SECONDS)

    def _event(self, n: int) -> Claim:
        return make_claim(str(n).encode(), ordering_key=f"k{n % KEYS}")

    def _publish(self, batch: Sequence[Claim]) -> None:
        began = time.monotonic()
        outcomes = self.publisher.publish(batch)
        self.longest_call_seconds = max(self.longest_call_seconds, time.monotonic() - began)
        for claim, outcome in zip(batch, outcomes, strict=True):
            match outcome:
                case Acked():
                    self.acked.add(claim.event_id)
                case Refused(error):
                    self.refusals[f"{error.kind.name} {error.code}"] += 1


def assert_once_and_in_order(stored: Sequence[Stored], n: int) -> None:
    numbers = [int(message.payload) for message in stored]
    assert sorted(numbers) == list(range(n)), f"{len(numbers)} of {n}: {len(set(numbers))} distinct"
    for key in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == key]
        assert of_key == sorted(of_key), key
