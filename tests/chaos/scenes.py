"""
Scenes: what relays, reapers, replays and people do, so that every statement of theirs is sent.

A scene ends when the fault has struck, or, in a recording, when it has sent all that it sends; the
case then emits more events and judges. A scene says in the stage's `dead` and `repeats` what it
asked for beyond every event's one arrival.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from chaos.stage import LEASE, PATIENCE, Stage
from dev.services import wait_until
from fixtures.bulk import replay_settings
from fixtures.outbox import Holder
from outbox_core.errors import RequestRefused
from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused
from outbox_core.model.event import Claim
from outbox_core.store import replays
from outbox_core.store.connection import Connection, connect
from outbox_core.store.intervene.interventions import Interventions, Result
from outbox_core.store.intervene.retirement import Retiring
from outbox_relay.worker.reaper import reap_once
from outbox_relay.worker.reporting import Reporter

REPLAY, PERSON = "outbox-replay", "outbox-person"
"""The applications of who is no relay."""


def flowing(stage: Stage) -> None:
    """Relays start, and events come."""
    stage.register()
    stage.emit()
    stage.start()
    stage.emit_until_struck()


def joining(stage: Stage) -> None:
    """One after the other: who is there lets go of lanes when others come."""
    stage.register()
    stage.emit()
    for n in range(stage.size):
        stage.start(1)
        crew = stage.relays[-1].relay.context.crew
        with suppress(TimeoutError):  # a fault may keep it from that
            wait_until(lambda crew=crew, n=n: len(crew.lanes) >= 64 // (n + 1), 5, "its lanes")  # type: ignore[misc]
    stage.emit_until_struck()


def renewing(stage: Stage) -> None:
    """Publishing takes longer than a third of the lease, now and then."""
    slow_until = time.monotonic() + 2 * LEASE

    def dawdle(batch: Sequence[Claim]) -> None:
        if batch[0].seq % 2 and time.monotonic() < slow_until:
            stage.proxy.closing.wait(0.55 * LEASE)

    stage.book.before = dawdle
    flowing(stage)


def failing(stage: Stage) -> None:
    """The broker refuses a tenth of the events for a moment; of a key, the rest wait."""
    refused: dict[int, float] = {}

    def judge(claim: Claim) -> Outcome:
        now = time.monotonic()
        if claim.seq % 10 == 0 and now < refused.setdefault(claim.seq, now) + 0.3 * LEASE:
            return Refused(Error.of(ErrorClass.TRANSIENT, "TEST", "not yet"))
        return Acked(f"t[0]@{claim.seq}")

    stage.book.judge = judge
    flowing(stage)


def merging(stage: Stage) -> None:
    """Events come one at a time, so that each is published alone."""
    stage.outbox.sql("CREATE OR REPLACE FUNCTION outbox.least_published() RETURNS integer"
                     " LANGUAGE sql IMMUTABLE AS 'SELECT 10'")  # fmt: skip
    stage.register()
    stage.start()
    for _ in range(60):
        stage.emit(1, 10)
        stage.proxy.closing.wait(0.02)
    stage.emit_until_struck()


def blocking(stage: Stage) -> None:
    """The broker refuses a key for longer than keepers rest: what is behind it waits meanwhile."""
    until = time.monotonic() + 2 * LEASE

    def judge(claim: Claim) -> Outcome:
        if claim.ordering_key == "k0" and time.monotonic() < until:
            return Refused(Error.of(ErrorClass.TRANSIENT, "TEST", "not yet"))
        return Acked(f"t[0]@{claim.seq}")

    stage.book.judge = judge
    stage.register()
    stage.emit()
    stage.start()
    while time.monotonic() < until:
        stage.emit(20, 10)
        stage.proxy.closing.wait(0.1)
    stage.emit_until_struck()


def breaking(stage: Stage) -> None:
    """The broker is away for a moment, again and again until the fault has struck: what is in
    flight is given back, and nothing is claimed."""
    outages: list[float] = []

    def judge(claim: Claim) -> Outcome:
        now = time.monotonic()
        if not outages or (now > outages[-1] + 1.0 and not stage.plan.struck.is_set()):
            outages.append(now)
            stage.book.failing_probes = stage.size
        if now < outages[-1] + 0.1:
            return Refused(Error.of(ErrorClass.OUTAGE, "TEST", "away"))
        return Acked(f"t[0]@{claim.seq}")

    stage.book.judge = judge
    flowing(stage)


def stopping(stage: Stage) -> None:
    """A relay is asked to stop while it publishes; another takes over."""
    stage.register()
    stage.emit()
    stage.start()
    first = stage.relays[0]

    def end(batch: Sequence[Claim]) -> None:
        if batch[0].token in first.memory().claims:
            first.relay.stop()

    stage.book.before = end
    deadline = time.monotonic() + PATIENCE
    while first.running and time.monotonic() < deadline:
        stage.emit(5, 5)
        stage.proxy.closing.wait(0.05)
    stage.start(1)
    stage.emit_until_struck()


def inheriting(stage: Stage) -> None:
    """A relay died with claims, and its lease has expired."""
    leave_claims(stage)
    stage.emit()
    stage.start()
    stage.emit_until_struck()


def reaping(stage: Stage) -> None:
    """The same, and `outbox-relay reap` finds it before any relay does."""
    leave_claims(stage)
    stage.insist(lambda: reap_once(stage.relay_settings("reaper")))
    stage.start()
    stage.emit_until_struck()


def leave_claims(stage: Stage) -> None:
    relay = stage.register()
    stage.emit(10, 10)
    if stage.ordering == "Key":
        ghost = Holder(stage.outbox, relay, owner="ghost")
        assert ghost.claim(limit=10)
        ghost.expire()  # its claims go with its lanes; were they overdue too, either may come first
    else:
        assert stage.outbox.claim(relay, limit=10, owner="ghost")
        stage.outbox.end_leases()


def expiring(stage: Stage) -> None:
    """Some events are too old."""
    stage.settings["retry"] = {"maxAge": "1h", "baseDelay": "20ms", "maxDelay": "100ms"}
    stage.register()
    old = stage.emit(0, 10)
    stage.outbox.sql(
        "UPDATE outbox.delivery SET age_from = now() - interval '2 h' WHERE seq = ANY (%s)", old
    )
    stage.dead |= set(old)
    stage.emit()
    stage.start()
    stage.emit_until_struck()


def registering(stage: Stage) -> None:
    """Events came before anybody wanted them."""
    stage.emit()
    stage.start()
    wait_until(lambda: any(r.relay.context.relay for r in stage.relays), PATIENCE, "registered")
    stage.emit_until_struck()


def relaning(stage: Stage) -> None:
    """Events lie in lanes of another ordering: their transaction did not see it change."""
    stage.outbox.register(ordering="None" if stage.ordering == "Key" else "Key")
    with stage.outbox.connect() as producer:
        for _ in range(20):
            stage.outbox.insert(producer)
        stage.register()
    stage.start()
    stage.emit_until_struck()


def reporting(stage: Stage) -> None:
    """Somebody asks for the status."""
    stage.register()
    stage.emit()
    stage.start()
    reporters = [Reporter(relay.relay.context) for relay in stage.relays]
    wait_until(lambda: all(r.relay.context.relay for r in stage.relays), PATIENCE, "registered")
    for reporter in reporters:
        assert reporter.report().relay == "relay"
        reporter.close()
    stage.emit_until_struck()


def listening(stage: Stage) -> None:
    """Relays are woken by NOTIFY."""
    stage.settings["polling"] = {"shortest": "10ms", "longest": "200ms", "notify": True}
    stage.emit()
    stage.start()
    stage.emit_until_struck()


def replaying(stage: Stage) -> None:
    """A bulk replay brings everything back while relays run."""
    relay = stage.register()
    seqs = stage.emit()
    stage.start()
    stage.wait_until_done()
    everything = {"states": ["PUBLISHED"], "eventTypes": ["*"]}
    settings = replay_settings(select=everything, rate={"eventsPerSecond": 1000})
    stage.repeats += len(seqs)
    over: list[Connection] = []

    def step(act: Callable[[Connection], Any]) -> Any:
        """Over one connection for as long as it lasts, as a task does it."""

        def once() -> Any:
            if over and over[0].closed:
                over.clear()
            if not over:
                over.append(connect(stage.proxy.dsn, REPLAY))
            return act(over[0])

        return stage.insist(once)

    known = step(lambda conn: replays.begin(conn, settings))
    step(lambda conn: replays.plan(conn, settings, known))
    step(lambda conn: replays.set_pace(conn, settings.id, 1e6))
    step(lambda conn: replays.stop(conn, settings.id))
    step(lambda conn: replays.begin(conn, settings))
    while (taken := step(lambda conn: replays.take(conn, settings.id, "task"))).outcome != "done":
        stage.proxy.closing.wait(max(taken.wait, 0.005))
    step(lambda conn: replays.live_age(conn, relay))
    progress = step(lambda conn: replays.progress(conn, settings.id))
    step(lambda conn: replays.finish(conn, settings.id))
    over[0].close()
    assert (progress.replayed, progress.skipped) == (len(seqs), 0)
    stage.emit_until_struck()


def intervening(stage: Stage) -> None:
    """A person does to some events whatever a person may do."""
    stage.register()
    stage.emit()
    stage.start()
    stage.wait_until_done()
    later = "SELECT outbox.emit('a.b', ''::bytea, %s, available_at => now() + interval '1 h')"
    due, moved, buried, raised, skipped = (
        stage.outbox.value(later, f"held-{n}" if n > 3 else None) for n in range(5)
    )

    def act(do: Callable[[Interventions], list[Result]]) -> None:
        def once() -> list[Result]:
            with connect(stage.proxy.dsn, PERSON) as conn:
                return do(Interventions(conn, "ops", "the test asks for it"))

        stage.insist(once)

    act(lambda hand: hand.retry([due]))
    act(lambda hand: hand.reschedule([moved], delay=timedelta()))
    act(lambda hand: hand.declare_dead([buried]))
    act(lambda hand: hand.declare_dead([raised]))
    act(lambda hand: hand.replay([raised]))
    act(lambda hand: hand.declare_dead([skipped], hold_key=True))
    act(lambda hand: hand.skip([skipped]))
    stage.dead |= {seq_of(stage, event) for event in (buried, skipped)}
    stage.emit_until_struck()


def seq_of(stage: Stage, event: UUID) -> int:
    return int(stage.outbox.value("SELECT seq FROM outbox.event WHERE event_id = %s", event))


def retiring(stage: Stage) -> None:
    """Another relay is retired, with everything that waits for it."""
    stage.register()
    other = stage.outbox.register("other", ordering=stage.ordering)
    stage.emit()
    stage.start()

    def once() -> str:
        with connect(stage.proxy.dsn, PERSON) as conn:
            try:
                return (
                    Retiring(conn, "other", "ops", "the test asks for it")
                    .carry_out(timedelta(seconds=5))
                    .status
                )
            except RequestRefused:  # it was marked by a try whose answer was lost
                return "unfinished"

    wait_until(lambda: stage.insist(once) in ("done", "unchanged"), PATIENCE, "it is retired")
    left = "SELECT count(*) FROM outbox.deliveries WHERE relay_id = %s"
    assert stage.outbox.value(left, other) == 0
    stage.emit_until_struck()


SCENES: dict[str, Callable[[Stage], None]] = {
    scene.__name__: scene
    for scene in (
        *(flowing, joining, renewing, failing, merging, blocking, breaking, stopping, inheriting),
        *(reaping, expiring, registering, relaning, reporting, listening, replaying, intervening),
        retiring,
    )
}
