"""
The database that a relay comes back to is an older one: a failover lost commits, or a backup was
restored. Seqs and relays' ids that the process remembers are given out again, to others.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.errors import ObjectInUse

from dev.services import PgBouncer, Postgres, wait_until
from fixtures.outbox import Outbox
from fixtures.relays import Broker, RunRelay
from outbox_relay.worker import keeper

pytestmark = [pytest.mark.pg, pytest.mark.slow]


def emit_many(outbox: Outbox, count: int) -> None:
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', '', 'k' || i %% 7 FROM generate_series(1, %s) i ORDER BY i",
        count,
    )


class Restore:
    """A copy of the test's database, put into its place later."""

    def __init__(self, postgres: Postgres, outbox: Outbox) -> None:
        self._name = outbox.value("SELECT current_database()")
        self._admin = psycopg.connect(postgres.dsn("postgres"), autocommit=True)
        self._outbox = outbox
        outbox.close()
        self._admin.execute(f"CREATE DATABASE {self._name}_copy TEMPLATE {self._name}")
        outbox.conn = outbox.connect(autocommit=True)

    def restore(self) -> None:
        self._outbox.close()
        old, copy = self._name, f"{self._name}_copy"
        self._admin.execute(f"ALTER DATABASE {old} ALLOW_CONNECTIONS false")

        def renamed() -> bool:
            """A session that was just being opened is only there after the others were ended."""
            self._admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (old,),
            )
            with suppress(ObjectInUse):
                self._admin.execute(f"ALTER DATABASE {old} RENAME TO {old}_lost")
                return True
            return False

        wait_until(renamed, 30, "nobody is connected")
        self._admin.execute(f"ALTER DATABASE {copy} RENAME TO {old}")
        self._admin.execute(f"DROP DATABASE {old}_lost")
        self._admin.close()
        self._outbox.conn = self._outbox.connect(autocommit=True)


def published(outbox: Outbox) -> int:
    return int(outbox.value("SELECT count(*) FROM outbox.deliveries WHERE state = 'PUBLISHED'"))


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_a_relay_begins_from_the_beginning_of_a_restored_database(
    postgres: Postgres, outbox: Outbox, run_relay: RunRelay, ordering: str
) -> None:
    outbox.register(ordering=ordering)
    backup = Restore(postgres, outbox)
    broker = Broker()
    relay = run_relay(outbox.dsn, broker, ordering=ordering, lease="2s", batchSize=50)
    emit_many(outbox, 2000)
    wait_until(lambda: published(outbox) == 2000, 30, "all published")
    # Long enough for the watermark to have come up behind them.
    emit_many(outbox, 20)
    wait_until(lambda: published(outbox) == 2020, 30, "the last ones too")
    before = len(broker.accepted)
    backup.restore()
    emit_many(outbox, 2500)  # under the same seqs, and some above
    wait_until(lambda: published(outbox) == 2500, 15, "all published again")
    if ordering == "Key":
        seen: dict[str | None, list[int]] = defaultdict(list)
        for claim in broker.accepted[before:]:
            if claim.seq not in seen[claim.ordering_key]:
                seen[claim.ordering_key].append(claim.seq)
        assert all(seqs == sorted(seqs) for seqs in seen.values())
    assert relay.relay.defect is None


def test_a_relay_that_the_restored_database_does_not_know_registers_again(
    postgres: Postgres, outbox: Outbox, run_relay: RunRelay
) -> None:
    """Its id belongs to another one there."""
    backup = Restore(postgres, outbox)
    broker = Broker()
    run_relay(outbox.dsn, broker, lease="2s", name="ours", subscription={"eventTypes": ["a.*"]})
    emit_many(outbox, 10)
    wait_until(lambda: published(outbox) == 10, 30, "all published")
    backup.restore()
    other = outbox.register("other", event_types=["b.*"])
    outbox.insert(event_type="b.c")
    emit_many(outbox, 10)
    wait_until(lambda: published(outbox) == 10, 20, "all published again")
    assert {c.event_type for c in broker.accepted} == {"a.b"}
    assert outbox.sql(
        "SELECT state::text FROM outbox.deliveries WHERE relay_id = %s", other
    ) == [("PENDING",)]  # fmt: skip


def test_behind_a_pooler_no_event_of_another_relay_is_published(
    postgres: Postgres, pgbouncer: PgBouncer, outbox: Outbox, run_relay: RunRelay
) -> None:
    """No connection breaks: the pooler was paused, and behind it is an older database."""
    name = outbox.value("SELECT current_database()")
    backup = Restore(postgres, outbox)
    broker = Broker()
    run_relay(
        pgbouncer.dsn(name), broker, lease="4s", name="ours",
        subscription={"eventTypes": ["a.*"]}, polling={"longest": "200ms"},
    )  # fmt: skip
    wait_until(lambda: outbox.value("SELECT count(*) FROM outbox.relay") == 1, 10, "registered")
    emit_many(outbox, 1)
    wait_until(lambda: published(outbox) == 1, 10, "published")
    with psycopg.connect(
        pgbouncer.dsn("pgbouncer"), autocommit=True, prepare_threshold=None
    ) as pooler:
        pooler.execute(f"PAUSE {name}")
        backup.restore()
        outbox.register("other", event_types=["b.*"])
        outbox.insert(event_type="b.c")
        emit_many(outbox, 3)
        pooler.execute(f"RESUME {name}")
    wait_until(lambda: len(broker.accepted) == 4, 20, "ours registered again, and has its events")
    assert {c.event_type for c in broker.accepted} == {"a.b"}
    assert outbox.states("other") == {"PENDING": 1}


CHANGES = [{"subscription": {"eventTypes": ["a.*", "b.*"]}}, {"ordering": "Key"}]
VERSION = "SELECT version FROM outbox.relay WHERE name = 'relay'"


@pytest.mark.parametrize("settings", CHANGES)
def test_what_an_older_process_registered_does_not_stay(
    outbox: Outbox, run_relay: RunRelay, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod of before the change restarts in the middle of the rollout, and ends."""
    monkeypatch.setattr(keeper, "ROLLOUT_SECONDS", 1.0)
    outbox.register("another")  # wants everything: so nothing is kept as unmatched
    broker = Broker()
    run_relay(outbox.dsn, broker, pod="new", lease="1.2s", **settings)
    wait_until(lambda: outbox.value("SELECT count(*) FROM outbox.relay") == 2, 10, "registered")
    outbox.register(event_types=["a.*"])
    wait_until(lambda: outbox.value(VERSION) == 4, 15, "registered again")
    outbox.emit("b.x", ordering_key="k")
    wait_until(lambda: "b.x" in {c.event_type for c in broker.accepted}, 10, "published")


def test_newer_settings_of_another_process_are_left_alone(
    outbox: Outbox,
    run_relay: RunRelay,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rollout: ours is the process that will end."""
    comparisons: list[Mapping[str, Any]] = []
    compare = keeper.Keeper._compare

    def counting(of: keeper.Keeper, known: Mapping[str, Any]) -> None:
        compare(of, known)
        comparisons.append(known)

    monkeypatch.setattr(keeper.Keeper, "_compare", counting)
    run_relay(outbox.dsn, Broker(), pod="old", lease="1.2s")
    wait_until(lambda: outbox.value("SELECT count(*) FROM outbox.relay") == 1, 10, "registered")
    outbox.register(event_types=["a.*"])

    def noticed() -> int:
        events = [getattr(record, "event", None) for record in caplog.records]
        return events.count("registration_differs")

    wait_until(noticed, 10, "it is noticed")
    before = len(comparisons)
    wait_until(lambda: len(comparisons) >= before + 3, 20, "it compares again")
    assert outbox.value("SELECT event_types FROM outbox.relay") == ["a.*"]
    assert noticed() == 1


@pytest.mark.parametrize("settings", CHANGES)
def test_a_registration_that_came_with_a_backup_is_brought_up_to_date(
    postgres: Postgres, outbox: Outbox, run_relay: RunRelay, settings: dict[str, Any]
) -> None:
    outbox.register("another")
    outbox.register(event_types=["a.*"])
    backup = Restore(postgres, outbox)
    broker = Broker()
    run_relay(outbox.dsn, broker, lease="1.2s", **settings)
    wait_until(lambda: outbox.value(VERSION) == 3, 10, "registered")
    backup.restore()
    wait_until(lambda: outbox.value(VERSION) == 3, 10, "registered again")
    outbox.emit("b.x", ordering_key="k")
    wait_until(lambda: "b.x" in {c.event_type for c in broker.accepted}, 10, "published")


def test_what_a_dead_process_left_in_line_is_found_soon(
    outbox: Outbox, run_relay: RunRelay
) -> None:
    """It died in the middle of a claim, and others had passed by what it had locked."""
    relay = outbox.register()
    emit_many(outbox, 1500)
    broker = Broker()
    never = threading.Event()

    def take_time(batch: object) -> None:
        never.wait(0.02)

    broker.before = take_time
    run_relay(outbox.dsn, broker, lease="2s", batchSize=20, workers=1)
    wait_until(lambda: len(broker.calls) > 10, 10, "at work")
    with outbox.connect() as dying:
        left = [c.seq for c in outbox.claim(relay, 50, conn=dying)]
        calls = len(broker.calls)
        wait_until(lambda: len(broker.calls) > calls + 8, 10, "it has passed them")
        dying.rollback()
    wait_until(
        lambda: (
            outbox.value(
                "SELECT count(*) FROM outbox.deliveries"
                " WHERE seq = ANY (%s) AND state = 'PUBLISHED'",
                left,
            )
            == 50
        ),
        4,
        "they are published within two leases",
    )
