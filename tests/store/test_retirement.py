"""Retiring a relay: it gets nothing, nothing waits for it, and nothing comes back by itself."""

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import errors as pg

from dev.services import Postgres, wait_until
from fixtures.bulk import emit_many
from fixtures.cli import Cli
from fixtures.outbox import Holder, Outbox
from fixtures.relays import Broker, RunRelay
from fixtures.replay_places import publish_together
from outbox_core.model.lifecycle import Hold, State

pytestmark = pytest.mark.pg

WHY = ("--reason", "OPS-7: the topic is gone")
ORDERS = ("retire", "--relay", "orders", *WHY)


def route(outbox: Outbox) -> None:
    while outbox.value("SELECT outbox.route_unmatched(100)"):
        pass


def waiting(outbox: Outbox) -> int:
    return int(outbox.value("SELECT count(*) FROM outbox.delivery WHERE state = 'PENDING'"))


def mixed(outbox: Outbox) -> tuple[int, dict[str, UUID]]:
    """A relay with a delivery of each kind that may wait, and of each that has ended."""
    relay = outbox.register("orders")
    events: dict[str, UUID] = {}
    events["published"] = outbox.emit()
    outbox.publish(relay, outbox.claim(relay))
    events["dead"] = outbox.emit()
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    events["retried"] = outbox.emit()
    outbox.fail(relay, outbox.claim(relay), delay=3600)
    events["suspect"] = outbox.emit()
    outbox.fail(relay, outbox.claim(relay), delay=3600, hold=Hold.SUSPECT)
    events["abandoned"] = outbox.emit()
    outbox.claim(relay, lease=timedelta(seconds=-1))
    events["in line"] = outbox.emit()
    return relay, events


# What becomes of the relay ------------------------------------------------------------------


def test_what_waits_goes_and_what_has_ended_stays_on_record(outbox: Outbox, cli: Cli) -> None:
    _, events = mixed(outbox)
    assert "4 waiting dropped; 1 dead and all published stay" in cli(*ORDERS)
    left = {row["event_id"]: row for row in outbox.events("relay IS NOT NULL")}
    assert {e: left[e]["state"] for e in left} == {
        events["published"]: "PUBLISHED",
        events["dead"]: "DEAD",
    }
    assert left[events["published"]]["result"]
    assert {row["relay"] for row in left.values()} == {"orders (retired #1)"}


def test_what_waits_behind_its_key_goes_too(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("orders", ordering="Key")
    for _ in range(3):
        outbox.emit(ordering_key="k")
    process = Holder(outbox, relay)
    outbox.fail(relay, process.claim(limit=1), delay=3600)
    assert process.claim() == []  # the other two are behind it now
    assert outbox.value("SELECT count(*) FROM outbox.delivery WHERE hold = 'KEY'") > 0
    process.expire()
    assert "3 waiting dropped" in cli(*ORDERS)
    assert outbox.value("SELECT count(*) FROM outbox.delivery") == 0
    assert outbox.value("SELECT count(*) FROM outbox.lane") == 0
    assert outbox.value("SELECT count(*) FROM outbox.holder") == 0


def test_it_gets_no_new_deliveries(outbox: Outbox, cli: Cli) -> None:
    outbox.register("orders")
    cli(*ORDERS)
    outbox.emit()
    assert outbox.value("SELECT count(*) FROM outbox.delivery") == 0


def test_other_relays_do_not_feel_it(outbox: Outbox, cli: Cli) -> None:
    outbox.register("orders")
    other = outbox.register("other")
    events = {str(outbox.emit()) for _ in range(5)}
    cli(*ORDERS)
    events.add(str(outbox.emit()))
    assert {c.event_id for c in outbox.claim(other)} == events


def test_an_event_that_nobody_is_to_have_does_not_look_as_if_it_waited(
    outbox: Outbox, cli: Cli
) -> None:
    outbox.register("orders")
    event = outbox.emit()
    cli(*ORDERS)
    assert outbox.event(event)["state"] is None
    assert "for no relay" in cli("list")
    assert cli.json("list", "--state", "PENDING")["events"] == []
    assert "was retired" in cli("show", event)


def test_what_waits_goes_in_batches_also_from_lanes(
    outbox: Outbox, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_core.store.intervene.retirement.BATCH_ROWS", 1000)
    for ordering in ("None", "Key"):
        outbox.register("orders", ordering=ordering)
        outbox.sql(
            "INSERT INTO outbox.event (event_type, payload, ordering_key)"
            " SELECT 'a.b', '', 'k' || i %% 300 FROM generate_series(1, 5500) i"
        )
        assert "5500 waiting dropped" in cli(*ORDERS)
        assert outbox.value("SELECT count(*) FROM outbox.delivery") == 0


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_what_a_process_that_died_had_claimed_is_dropped_and_what_is_published_stays(
    outbox: Outbox, cli: Cli, ordering: str
) -> None:
    relay = outbox.register("orders", ordering=ordering)
    emit_many(outbox, 10, keys=4)
    publish_together(outbox, relay)
    emit_many(outbox, 20, keys=4)
    if ordering == "Key":
        process = Holder(outbox, relay)
        process.claim(limit=5)
        process.expire()
    else:
        outbox.claim(relay, limit=5)
    outbox.end_leases()
    flying = outbox.value("SELECT sum(cardinality(seqs)) FROM outbox.batch")
    assert flying >= 5
    with outbox.connect() as other:  # about to be taken back
        other.execute("SELECT 1 FROM outbox.batch FOR UPDATE")
        found = cli.json(*ORDERS, "--wait", "0s", code=1)
        assert (found["status"], found["dropped"]) == ("unfinished", 20 - flying)
    assert f"{flying} waiting dropped" in cli(*ORDERS)
    assert outbox.states("orders (retired #1)") == {"PUBLISHED": 10}


# Who comes after it -------------------------------------------------------------------------


def test_a_relay_of_the_same_name_starts_afresh(outbox: Outbox, cli: Cli) -> None:
    old, _ = mixed(outbox)
    cli(*ORDERS)
    meanwhile = str(outbox.emit())  # wanted by no relay
    new = outbox.register("orders")
    route(outbox)
    after = str(outbox.emit())
    assert new != old
    assert {c.event_id for c in outbox.claim(new)} == {meanwhile, after}
    assert outbox.states("orders") == {"CLAIMED": 2}


def test_a_relay_of_another_name_does_not_get_the_past_either(outbox: Outbox, cli: Cli) -> None:
    mixed(outbox)
    cli(*ORDERS)
    other = outbox.register("other")
    route(outbox)
    assert outbox.claim(other) == []


def test_a_process_that_was_forgotten_cannot_touch_its_successors_events(
    outbox: Outbox, cli: Cli
) -> None:
    old = outbox.register("orders")
    cli(*ORDERS)
    outbox.register("orders")
    outbox.emit()
    assert outbox.claim(old) == []


def test_a_forgotten_process_reports_that_its_relay_is_retired(
    outbox: Outbox, cli: Cli, run_relay: RunRelay
) -> None:
    process = run_relay(outbox.dsn, Broker(), name="orders", lease="2s")
    health = process.relay.health
    wait_until(lambda: not health.troubles, 20, "ready")
    assert "done" in cli(*ORDERS)
    wait_until(lambda: health.reasons.get("relay") == "RelayRetired", 20, "it reports it")
    assert "restart" in health.troubles["relay"]


def test_it_can_be_retired_again_and_again(outbox: Outbox, cli: Cli) -> None:
    for _ in range(3):
        outbox.register("orders")
        outbox.emit()
        assert "1 waiting dropped" in cli(*ORDERS)
    names = [name for (name,) in outbox.sql("SELECT name FROM outbox.relay ORDER BY id")]
    assert names == [f"orders (retired #{n})" for n in (1, 2, 3)]


# Who is in the way --------------------------------------------------------------------------


def test_it_is_refused_while_a_process_has_claims(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("orders")
    outbox.emit()
    claims = outbox.claim(relay, owner="pod-7")
    cli(*ORDERS, "--wait", "0s", code=1)
    assert "pod-7" in cli.err
    assert "Stop its processes" in cli.err
    assert outbox.value("SELECT active FROM outbox.relay")
    assert cli.json("audit")["audit"] == []
    outbox.publish(relay, claims)
    assert "0 waiting dropped" in cli(*ORDERS)


def test_it_is_refused_while_a_process_holds_lanes(outbox: Outbox, cli: Cli) -> None:
    process = Holder(outbox, outbox.register("orders", ordering="Key"), owner="pod-7")
    cli(*ORDERS, "--wait", "0s", code=1)
    assert "pod-7" in cli.err
    process.expire()
    cli(*ORDERS, "--wait", "0s")


def test_processes_that_drain_are_waited_for(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("orders")
    outbox.emit()
    claims = outbox.claim(relay)
    conn = outbox.connect(autocommit=True)
    drained = threading.Timer(
        1.0,
        lambda: conn.execute(
            "SELECT outbox.finish_published(%s, %s, %s, %s)",
            (relay, claims[0].token, [claims[0].seq], ["t[0]@1"]),
        ),
    )
    drained.start()
    assert "done" in cli(*ORDERS, "--wait", "30s")
    drained.join()
    assert outbox.states() == {"PUBLISHED": 1}


def test_transactions_that_began_before_are_waited_for(outbox: Outbox, cli: Cli) -> None:
    outbox.register("orders")
    producer = outbox.connect()
    outbox.insert(producer)  # it has its delivery already, and is not committed
    committed = threading.Timer(1.0, producer.commit)
    committed.start()
    assert "1 waiting dropped" in cli(*ORDERS, "--wait", "30s")
    committed.join()
    assert waiting(outbox) == 0


def test_an_unfinished_run_reports_it_and_the_next_one_finishes(outbox: Outbox, cli: Cli) -> None:
    outbox.register("orders")
    outbox.emit()
    producer = outbox.connect()
    outbox.insert(producer)
    assert "unfinished" in cli(*ORDERS, "--wait", "0s", code=1)
    producer.commit()
    assert waiting(outbox) == 1
    assert "1 waiting dropped" in cli(*ORDERS, "--wait", "30s")
    assert waiting(outbox) == 0


# What is reported ---------------------------------------------------------------------------


def test_a_second_run_has_nothing_to_do(outbox: Outbox, cli: Cli) -> None:
    mixed(outbox)
    cli(*ORDERS)
    before = outbox.sql("SELECT * FROM outbox.audit")
    assert cli(*ORDERS).startswith("unchanged")
    assert outbox.sql("SELECT * FROM outbox.audit") == before


def test_a_relay_that_never_was_leaves_nothing_to_do(outbox: Outbox, cli: Cli) -> None:
    assert "nothing to do, no such relay is registered" in cli(*ORDERS)


def test_a_database_without_an_outbox_leaves_nothing_to_do(
    empty_database: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_DSN", empty_database)
    assert "nothing to do, this database has no outbox" in cli(*ORDERS)


def test_a_dry_run_shows_the_counts_and_changes_nothing(outbox: Outbox, cli: Cli) -> None:
    mixed(outbox)
    before = outbox.sql("SELECT * FROM outbox.delivery ORDER BY seq")
    found = cli.json(*ORDERS, "--dry-run")
    assert (found["status"], found["dropped"], found["dead"]) == ("planned", 4, 1)
    assert outbox.sql("SELECT * FROM outbox.delivery ORDER BY seq") == before
    assert outbox.value("SELECT active FROM outbox.relay")
    assert cli.json("audit")["audit"] == []
    outbox.claim(1, owner="pod-7")
    assert "pod-7" in cli(*ORDERS, "--dry-run")


def test_oo_64_who_retired_what_when_and_why_is_kept(outbox: Outbox, cli: Cli) -> None:
    mixed(outbox)
    cli(*ORDERS, "--actor", "ann")
    drop, mark = cli.json("audit")["audit"]
    assert {(e["actor"], e["relay"], e["reason"]) for e in (drop, mark)} == {
        ("ann", "orders", "OPS-7: the topic is gone")
    }
    assert (mark["action"], mark["before"]["name"], mark["after"]["state"]) == (
        "retire",
        "orders",
        "retired",
    )
    assert (drop["action"], drop["before"]["count"]) == ("drop", 4)
    shown = cli("audit")
    assert "active > retired" in shown
    assert "4 PENDING > gone" in shown
    assert "retired #1" in cli("relays")


def test_the_settings_may_name_it(outbox: Outbox, cli: Cli, tmp_path: Any) -> None:
    outbox.register("orders")
    config = tmp_path / "relay.yaml"
    config.write_text("name: orders\npublisher: {kafka: {bootstrapServers: 'unused:1'}}\n")
    assert "relay orders" in cli("retire", "--config", config, *WHY)


@pytest.mark.parametrize(
    "args", [("--relay", "orders"), WHY, ("--relay", "orders", "--reason", " ")]
)
def test_a_name_and_a_reason_are_needed(outbox: Outbox, cli: Cli, args: tuple[str, ...]) -> None:
    outbox.register("orders")
    cli("retire", *args, code=2)
    assert outbox.value("SELECT active FROM outbox.relay")


# Rules and rights ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("UPDATE outbox.relay SET active = false, retirement = 1", "an entry in the audit"),
        ("UPDATE outbox.relay SET active = false, retirement = 99", "an entry in the audit"),
        ("DELETE FROM outbox.relay", "outbox.relay is not allowed"),
        ("TRUNCATE outbox.relay", "outbox.relay is not allowed"),
        ("UPDATE outbox.relay SET id = DEFAULT", "keeps its id"),
        ("DELETE FROM outbox.delivery", "would be lost"),
        ("SELECT outbox.drop_waiting(1, 10, '-2', 0)", "is not retired"),
        (
            "INSERT INTO outbox.audit (actor, action, relay, reason, before, after)"
            " VALUES ('a', 'replay', 'orders', 'r', '{}', '{}')",
            "audit_names_what_it_is_about",
        ),
    ],
)
def test_the_database_knows_no_other_way_not_even_for_a_superuser(
    outbox: Outbox, statement: str, rule: str
) -> None:
    relay = outbox.register("orders")
    dead = outbox.emit()
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    outbox.sql(  # an entry, but about something else
        "INSERT INTO outbox.audit (actor, action, relay, event_id, seq, reason, before, after)"
        " VALUES ('a', 'skip', 'orders', %s, 1, 'r', '{}', '{\"relay_id\": 1}')",
        dead,
    )
    outbox.sql("SET session_replication_role = replica")
    with pytest.raises((pg.RestrictViolation, pg.CheckViolation), match=rule):
        outbox.sql(statement)
    outbox.sql("UPDATE outbox.relay SET active = false")  # not active is not retired
    with pytest.raises(pg.RestrictViolation, match="would be lost"):
        outbox.sql("DELETE FROM outbox.delivery")


def test_retired_is_for_good_and_what_has_ended_is_not_deleted(outbox: Outbox, cli: Cli) -> None:
    mixed(outbox)
    cli(*ORDERS)
    for statement in (
        "UPDATE outbox.relay SET active = true",
        "UPDATE outbox.relay SET name = 'orders'",
        "UPDATE outbox.relay SET retirement = NULL",
        "DELETE FROM outbox.relay",
        "DELETE FROM outbox.delivery",
    ):
        with pytest.raises(pg.RestrictViolation):
            outbox.sql(statement)


def test_the_relays_role_is_enough_and_the_readers_is_not(
    outbox: Outbox, cli: Cli, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(outbox)
    database = outbox.value("SELECT current_database()")
    for role, code in (("outbox_reader", 1), ("outbox_producer", 1), ("outbox_relay", 0)):
        name = f"user_{uuid4().hex[:8]}"
        outbox.sql(f"CREATE ROLE {name} LOGIN IN ROLE {role}")
        monkeypatch.setenv("OUTBOX_DSN", postgres.dsn(database, name))
        cli(*ORDERS, code=code)
        assert ("outbox_relay" in cli.err) == bool(code)
        with outbox.connect() as conn:
            conn.execute(f"SET ROLE {name}")
            with pytest.raises(pg.InsufficientPrivilege):
                conn.execute("DELETE FROM outbox.delivery")
        outbox.sql(f"DROP ROLE {name}")
    assert waiting(outbox) == 0


def test_a_relay_that_registers_at_the_same_moment_is_either_before_or_after(
    outbox: Outbox, cli: Cli
) -> None:
    """Both hold the lock of registrations: so there is never one without the other's knowledge."""
    old = outbox.register("orders")
    outbox.emit()
    with outbox.connect() as registering:
        registering.execute("SELECT outbox.register_relay('orders', '{a.*}')")
        done: list[str] = []
        run = threading.Thread(target=lambda: done.append(cli(*ORDERS)))
        run.start()
        wait_until(
            lambda: outbox.value(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE application_name = 'outbox-retire' AND wait_event_type = 'Lock'"
            ),
            20,
            "it waits for the registration",
        )
        registering.commit()
        run.join()
    assert "1 waiting dropped" in done[0]
    assert outbox.sql("SELECT id, event_types FROM outbox.relay") == [(old, ["a.*"])]
