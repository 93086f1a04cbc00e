"""Intervening by hand: along valid transitions only, each with a reason, each in the audit."""

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dev.services import Postgres, wait_until
from fixtures.cli import Cli
from fixtures.outbox import LEASE, Outbox
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State
from outbox_core.store.connection import Connection
from outbox_core.store.deliveries import Wanted
from outbox_core.store.intervene.interventions import Interventions, Result
from outbox_core.store.lanes import LANES, Lanes
from outbox_core.store.tokens import fresh_token

pytestmark = pytest.mark.pg

WHY = ("--reason", "OPS-42: topic was created")


def published(outbox: Outbox, relay: int, **fields: object) -> UUID:
    event = outbox.emit("order.created", **fields)
    outbox.publish(relay, outbox.claim(relay))
    return event


def dead(outbox: Outbox, relay: int, text: str = "no topic", **fields: object) -> UUID:
    event = outbox.emit("order.created", **fields)
    outbox.fail(relay, outbox.claim(relay), State.DEAD, text=text)
    return event


class Ordered:
    """An ordered relay with one process that holds all lanes."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.id = outbox.register("ordered", ordering="Key")
        lanes = Lanes(outbox.conn, self.id, "pod-1", LEASE)
        self._holder = fresh_token()
        lanes.join(self._holder)
        lanes.acquire(self._holder, LANES)

    def claim(self, limit: int = 100, conn: Connection | None = None) -> list[Claim]:
        wanted = Wanted(fresh_token(), limit, range(LANES), floor=0, lane_limit=limit)
        deliveries = self.outbox.deliveries(self.id, conn=conn)
        return deliveries.turn(None, wanted, self._holder).claims

    def sent(self) -> list[UUID]:
        claims = self.claim()
        if claims:
            self.outbox.publish(self.id, claims)
        return [UUID(c.event_id) for c in claims]


@pytest.fixture
def ordered(outbox: Outbox) -> Ordered:
    return Ordered(outbox)


def test_a_claim_knows_whether_a_replayed_event_was_published(outbox: Outbox, cli: Cli) -> None:
    """Whether a receiver has it is then no question: it had it before."""
    relay = outbox.register("relay")
    first, second = published(outbox, relay), dead(outbox, relay)
    for event in (first, second):
        cli("replay", event, *WHY)
    claims = outbox.claim(relay)
    known = {UUID(c.event_id): c.was_published for c in claims}
    assert known == {first: True, second: False}
    outbox.fail(relay, claims)
    again = {UUID(c.event_id): (c.attempts, c.was_published) for c in outbox.claim(relay)}
    assert again == {first: (3, True), second: (3, False)}


# retry ----------------------------------------------------------------------------------------


def test_oo_36_a_waiting_event_is_retried_now(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    outbox.fail(relay, outbox.claim(relay), delay=3600)
    assert outbox.claim(relay) == []
    assert "PENDING, due now" in cli("retry", event, *WHY)
    (claim,) = outbox.claim(relay)
    assert (claim.event_id, claim.attempts) == (str(event), 2)


def test_oo_36_a_retry_keeps_a_suspect_a_suspect(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    outbox.fail(relay, outbox.claim(relay), delay=3600, hold=Hold.SUSPECT)
    cli("retry", event, *WHY)
    assert outbox.claim(relay) == []
    assert len(outbox.claim(relay, suspects=True)) == 1


def test_what_is_due_already_is_left_as_it_is(outbox: Outbox, cli: Cli) -> None:
    outbox.register("relay")
    event = outbox.emit("x")
    assert "unchanged" in cli("retry", event, *WHY)
    assert cli.json("audit")["audit"] == []


@pytest.mark.parametrize("command", [("retry",), ("reschedule", "--in", "1h")])
@pytest.mark.parametrize("state", ["CLAIMED", "PUBLISHED", "DEAD"])
def test_oo_36_only_what_is_pending_is_retried_or_rescheduled(
    outbox: Outbox, cli: Cli, command: tuple[str, ...], state: str
) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    claims = outbox.claim(relay)
    if state == "PUBLISHED":
        outbox.publish(relay, claims)
    elif state == "DEAD":
        outbox.fail(relay, claims, State.DEAD)
    before = outbox.event(event)
    assert f"it is {state}" in cli(*command, event, *WHY, code=1)
    assert outbox.event(event) == before
    assert cli.json("audit")["audit"] == []


# reschedule -------------------------------------------------------------------------------------


def test_oo_56_an_event_in_line_is_rescheduled(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    cli("reschedule", event, "--in", "2h", *WHY)
    row = outbox.event(event)
    assert (row["hold"], row["state"]) == ("TIME", "PENDING")
    late = outbox.value("SELECT %s::timestamptz - now()", row["available_at"])
    assert timedelta(minutes=119) < late <= timedelta(hours=2)
    assert outbox.claim(relay) == []
    cli("reschedule", event, "--at", "2020-01-01T00:00:00Z", *WHY)
    assert len(outbox.claim(relay)) == 1


def test_reschedule_needs_one_time(outbox: Outbox, cli: Cli) -> None:
    outbox.register("relay")
    event = outbox.emit("x")
    cli("reschedule", event, *WHY, code=2)
    cli("reschedule", event, "--in", "1h", "--at", "2030-01-01", *WHY, code=2)
    cli("reschedule", event, "--in", "soon", *WHY, code=2)


def test_a_rescheduled_event_holds_its_key(outbox: Outbox, cli: Cli, ordered: Ordered) -> None:
    first, second = (outbox.emit("x", ordering_key="k") for _ in range(2))
    cli("reschedule", first, "--in", "1h", *WHY)
    assert "later events of its key" in cli.err
    assert ordered.sent() == []
    assert f"behind {first}" in cli("retry", second, *WHY, code=1)
    assert f"behind {first}" in cli("reschedule", second, "--in", "5m", *WHY, code=1)
    cli("retry", first, *WHY)
    assert ordered.sent() + ordered.sent() == [first, second]


def test_em_18_a_key_stays_in_order_while_its_first_event_is_rescheduled(
    outbox: Outbox, ordered: Ordered
) -> None:
    first, _ = (outbox.emit("x", ordering_key="k") for _ in range(2))
    claimed: list[Claim] = []

    class Slow(Interventions):
        """Between judging and changing, a relay starts to claim."""

        def _carry_out(self, *args: Any) -> Result:
            claims.start()
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_until(lambda: outbox.value(waiting) == 1, 10, "the claim to wait for us")
            return super()._carry_out(*args)

    with outbox.connect(autocommit=True) as relay, outbox.connect(autocommit=True) as person:
        claims = threading.Thread(target=lambda: claimed.extend(ordered.claim(conn=relay)))
        Slow(person, "ann", "later").reschedule([first], delay=timedelta(hours=1))
        claims.join()
    assert claimed == []


# declare-dead -----------------------------------------------------------------------------------


@pytest.mark.parametrize("waiting", [False, True])
def test_oo_56_a_pending_event_is_declared_dead_without_an_attempt(
    outbox: Outbox, cli: Cli, waiting: bool
) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x", available_at="2100-01-01" if waiting else None)
    cli("declare-dead", event, "--reason", "wrong customer, password=secret")
    row = outbox.event(event)
    assert (row["state"], row["attempts"], row["hold"]) == ("DEAD", 0, "NONE")
    error = row["last_error"]
    assert (error["class"], error["code"]) == ("operator", "DECLARED_DEAD")
    assert error["text"] == "wrong customer, password=***"
    assert outbox.claim(relay) == []
    assert "DEAD" in cli("declare-dead", event, *WHY, code=1)


def test_oo_56_what_is_out_or_in_flight_is_not_declared_dead(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    out = published(outbox, relay)
    flying = outbox.emit("x")
    outbox.claim(relay)
    assert "PUBLISHED" in cli("declare-dead", out, *WHY, code=1)
    assert "in flight" in cli("declare-dead", flying, *WHY, code=1)
    assert outbox.states() == {"PUBLISHED": 1, "CLAIMED": 1}


def test_a_declared_death_lets_its_key_continue_unless_it_holds_the_key(
    outbox: Outbox, cli: Cli, ordered: Ordered
) -> None:
    first, second, third = (outbox.emit("x", ordering_key="k") for _ in range(3))
    cli("declare-dead", first, *WHY)
    cli("declare-dead", second, "--hold-key", *WHY)
    assert outbox.event(first)["hold"] == "NONE"
    assert outbox.event(second)["hold"] == "DEAD"
    assert ordered.sent() == []
    cli("skip", second, *WHY)
    assert ordered.sent() == [third]


# replay -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["DEAD", "PUBLISHED"])
def test_lc_19_oo_51_replay_makes_a_terminal_event_processable(
    outbox: Outbox, cli: Cli, state: str
) -> None:
    relay = outbox.register("relay")
    event = (dead if state == "DEAD" else published)(outbox, relay)
    before = outbox.event(event)
    cli("replay", event, *WHY)
    row = outbox.event(event)
    assert (row["state"], row["published_at"], row["hold"]) == ("PENDING", None, "TIME")
    assert row["available_at"] <= outbox.value("SELECT now()")
    assert row["previous_published_at"] == before["published_at"]
    (claim,) = outbox.claim(relay)
    outbox.publish(relay, [claim])
    assert outbox.event(event)["state"] == "PUBLISHED"


def test_tc_28_ce_19_a_replay_is_a_new_life_with_its_own_budget(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x", max_attempts=3)
    for _ in range(2):
        outbox.fail(relay, outbox.claim(relay))
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    cli("replay", event, *WHY)
    row = outbox.event(event)
    assert row["replay_id"].startswith("manual-")
    assert (row["attempts"], row["attempts_in_budget"]) == (3, 0)
    assert (row["last_error"], row["crashes"], row["result"]) == (None, 0, None)
    (claim,) = outbox.claim(relay)
    assert claim.spent == 1


def test_lc_20_attempts_and_error_are_kept_where_asked_for(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = dead(outbox, relay, "no topic")
    cli("replay", event, "--keep-attempts", *WHY)
    assert "stay counted" in cli.err
    row = outbox.event(event)
    assert (row["attempts"], row["attempts_in_budget"]) == (1, 1)
    assert row["last_error"]["text"] == "no topic"


def test_em_28_attempts_never_fall_also_through_replay(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = dead(outbox, relay)
    seen = []
    for _ in range(3):
        cli("replay", event, *WHY)
        seen.append(outbox.event(event)["attempts"])
        outbox.fail(relay, outbox.claim(relay), State.DEAD)
    assert seen == [1, 2, 3]


def test_em_43_a_replay_takes_published_at_away_and_remembers_it(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = published(outbox, relay)
    first = outbox.event(event)["published_at"]
    cli("replay", event, *WHY)
    assert outbox.event(event)["previous_published_at"] == first
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    cli("replay", event, *WHY)
    assert (
        outbox.event(event)["previous_published_at"] == first
    )  # a death in between forgets nothing
    with pytest.raises(psycopg.errors.RestrictViolation):
        outbox.sql("UPDATE outbox.delivery SET previous_published_at = now()")


@pytest.mark.parametrize("state", ["PENDING", "CLAIMED"])
def test_oo_52_lc_28_replay_leaves_what_is_on_its_way_alone(
    outbox: Outbox, cli: Cli, state: str
) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    if state == "CLAIMED":
        outbox.claim(relay)
    before = outbox.event(event)
    assert f"it is {state}" in cli("replay", event, *WHY, code=1)
    assert outbox.event(event) == before


def test_lc_28_nothing_but_a_replay_brings_a_terminal_event_back(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    events = [dead(outbox, relay), published(outbox, relay)]
    for command in (("retry",), ("reschedule", "--in", "1s"), ("declare-dead",)):
        cli(*command, *events, *WHY, code=1)
    assert outbox.states() == {"DEAD": 1, "PUBLISHED": 1}


def test_oo_52_each_event_counts_for_itself(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    good = dead(outbox, relay)
    flying = outbox.emit("x")
    outbox.claim(relay)
    unknown = uuid4()
    results = cli.json("replay", flying, unknown, good, *WHY, code=1)["results"]
    assert {r["event_id"]: r["status"] for r in results} == {
        str(good): "done",
        str(flying): "refused",
        str(unknown): "refused",
    }
    assert outbox.event(good)["state"] == "PENDING"
    assert len(cli.json("audit")["audit"]) == 1


def test_oo_59_replay_warns_of_duplicates_and_of_order(
    outbox: Outbox, cli: Cli, ordered: Ordered
) -> None:
    first, second, third = (outbox.emit("x", ordering_key="k") for _ in range(3))
    assert ordered.sent() == [first, second, third]
    before = outbox.event(first)
    (plan,) = cli.json("replay", first, "--dry-run", *WHY)["results"]
    assert plan["status"] == "planned"
    duplicate, order = plan["warnings"]
    assert "consumers get it again" in duplicate
    assert "2 later event(s) of its key 'k'" in order
    assert outbox.event(first) == before
    assert cli.json("audit")["audit"] == []
    cli("replay", first, *WHY)
    assert "warning: order" in cli.err
    cli("replay", "--help")


def test_ce_30_a_keys_events_come_back_in_order_however_they_are_named(
    outbox: Outbox, cli: Cli, ordered: Ordered
) -> None:
    events = [outbox.emit("x", ordering_key=f"k{n % 2}") for n in range(10)]
    assert ordered.sent() == events
    for _ in range(2):
        cli("replay", *events[::-1], *WHY)
        sent: list[UUID] = []
        while len(sent) < 10:
            sent += ordered.sent()
        for key in (0, 1):
            assert [e for e in sent if e in events[key::2]] == events[key::2]


def test_a_replay_frees_the_key_that_a_dead_event_blocked(
    outbox: Outbox, cli: Cli, ordered: Ordered
) -> None:
    first, second = (outbox.emit("x", ordering_key="k") for _ in range(2))
    claims = ordered.claim(1)
    outbox.fail(ordered.id, claims, State.DEAD, hold=Hold.DEAD)
    assert ordered.sent() == []
    cli("replay", first, *WHY)
    assert ordered.sent() == [first]
    assert ordered.sent() == [second]


def test_a_replay_goes_by_the_ordering_of_today(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("ordered")
    event = published(outbox, relay, ordering_key="k")
    ordered = Ordered(outbox)
    cli("replay", event, *WHY)
    assert ordered.sent() == [event]


# skip -------------------------------------------------------------------------------------------


def test_skip_leaves_a_dead_event_dead_and_lets_its_key_go_on(
    outbox: Outbox, cli: Cli, ordered: Ordered
) -> None:
    first, second = (outbox.emit("x", ordering_key="k") for _ in range(2))
    outbox.fail(ordered.id, ordered.claim(1), State.DEAD, hold=Hold.DEAD)
    assert ordered.sent() == []
    assert "it is PENDING" in cli("skip", second, *WHY, code=1)
    cli("skip", first, *WHY)
    assert ordered.sent() == [second]
    assert outbox.event(first)["state"] == "DEAD"
    assert "blocks nothing" in cli("skip", first, *WHY)


# who, when, what --------------------------------------------------------------------------------


def test_oo_64_who_did_what_when_and_why_is_kept(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = dead(outbox, relay)
    cli("replay", event, "--actor", "ann@laptop", *WHY)
    (entry,) = cli.json("audit", event)["audit"]
    assert (entry["actor"], entry["db_user"], entry["action"]) == (
        "ann@laptop",
        "postgres",
        "replay",
    )
    assert (entry["relay"], entry["event_id"], entry["reason"]) == ("relay", str(event), WHY[1])
    assert (entry["before"]["state"], entry["after"]["state"]) == ("DEAD", "PENDING")
    assert entry["at"]
    assert cli.json("show", event)["audit"] == [entry]
    assert "ann@laptop" in cli("audit")
    with pytest.raises(psycopg.errors.RestrictViolation):
        outbox.sql("DELETE FROM outbox.audit")


def test_oo_64_every_intervention_is_in_the_audit_by_default_in_the_users_name(
    outbox: Outbox, cli: Cli
) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    cli("reschedule", event, "--in", "1h", *WHY)
    cli("retry", event, *WHY)
    cli("declare-dead", event, *WHY)
    cli("replay", event, *WHY)
    entries = cli.json("audit")["audit"]
    assert [e["action"] for e in entries] == ["replay", "declare-dead", "retry", "reschedule"]
    assert all("@" in e["actor"] for e in entries)
    page = cli.json("audit", "--limit", 3)
    rest = cli.json("audit", "--before-id", page["next"]["before_id"])
    assert page["audit"] + rest["audit"] == entries
    assert len(outbox.claim(relay)) == 1


@pytest.mark.parametrize("reason", [(), ("--reason", ""), ("--reason", "  ")])
def test_oo_64_nothing_is_done_without_a_reason(
    outbox: Outbox, cli: Cli, reason: tuple[str, ...]
) -> None:
    relay = outbox.register("relay")
    event = dead(outbox, relay)
    cli("replay", event, *reason, code=2)
    assert outbox.event(event)["state"] == "DEAD"


def test_tc_41_the_relays_role_is_enough_to_intervene_and_the_readers_is_not(
    outbox: Outbox, cli: Cli, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = outbox.register("relay")
    event = dead(outbox, relay)
    database = outbox.value("SELECT current_database()")
    for role, code in (("outbox_reader", 1), ("outbox_relay", 0)):
        name = f"user_{uuid4().hex[:8]}"
        outbox.sql(f"CREATE ROLE {name} LOGIN IN ROLE {role}")
        monkeypatch.setenv("OUTBOX_DSN", postgres.dsn(database, name))
        cli("replay", event, *WHY, code=code)
        assert ("outbox_relay" in cli.err) == bool(code)
        outbox.sql(f"DROP ROLE {name}")
    (entry,) = cli_audit(outbox)
    assert entry.startswith("user_")


def cli_audit(outbox: Outbox) -> list[str]:
    return [user for (user,) in outbox.sql("SELECT db_user FROM outbox.audit")]


def test_where_several_relays_have_the_event_one_must_be_named(outbox: Outbox, cli: Cli) -> None:
    relays = {name: outbox.register(name) for name in ("a", "b")}
    event = outbox.emit("x")
    for relay in relays.values():
        outbox.publish(relay, outbox.claim(relay))
    assert "relays a, b have it" in cli("replay", event, *WHY, code=1)
    cli("replay", event, "--relay", "b", *WHY)
    assert outbox.event(event, "a")["state"] == "PUBLISHED"
    assert outbox.event(event, "b")["state"] == "PENDING"
    assert "has no delivery" in cli("replay", event, "--relay", "c", *WHY, code=1)


def test_an_event_that_no_relay_wanted_cannot_be_acted_on(outbox: Outbox, cli: Cli) -> None:
    event = outbox.emit("x")
    assert "no relay has" in cli("retry", event, *WHY, code=1)


def test_a_row_that_is_being_claimed_is_waited_for_and_then_reported(
    outbox: Outbox, cli: Cli
) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    outbox.fail(relay, outbox.claim(relay), delay=3600)
    with outbox.connect() as other:
        other.execute("SELECT 1 FROM outbox.delivery FOR UPDATE")
        assert "try again" in cli("retry", event, *WHY, code=1)
        release = threading.Timer(0.5, other.rollback)
        release.start()
        assert "done" in cli("retry", event, *WHY)
        release.join()


def test_a_claim_whose_lease_is_over_is_left_to_the_reaper(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    outbox.claim(relay, lease=timedelta(seconds=-1))
    assert "outbox-relay reap" in cli("declare-dead", event, *WHY, code=1)
