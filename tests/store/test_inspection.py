"""Reading an outbox by the command line: what a person sees, while no relay runs."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from dev.services import Postgres
from fixtures.cli import Cli
from fixtures.outbox import Outbox
from outbox_core.errors import StoreError
from outbox_core.model.lifecycle import State
from outbox_core.store.inspect.listing import Filter, Page, select
from outbox_core.store.reading import reading
from outbox_relay.cli.main import main

pytestmark = pytest.mark.pg


def ids(document: Any) -> list[UUID]:
    return [UUID(e["event_id"]) for e in document["events"]]


def in_each_state(outbox: Outbox) -> dict[str, UUID]:
    """One event in each state, of relay `relay`."""
    relay = outbox.register("relay")
    found = {}
    for state in ("PUBLISHED", "DEAD", "CLAIMED"):
        found[state] = outbox.emit(f"is.{state.lower()}")
        claims = outbox.claim(relay)
        if state == "PUBLISHED":
            outbox.publish(relay, claims)
        elif state == "DEAD":
            outbox.fail(relay, claims, State.DEAD, text="broker said no")
    found["PENDING"] = outbox.emit("is.pending")
    return found


def test_oo_46_an_outbox_is_inspected_while_no_relay_runs(outbox: Outbox, cli: Cli) -> None:
    event = outbox.emit("order.created", b"x")
    assert ids(cli.json("list")) == [event]
    assert "order.created" in cli("list")


@pytest.mark.parametrize("state", ["PENDING", "CLAIMED", "PUBLISHED", "DEAD"])
def test_oo_47_events_are_listed_by_state(outbox: Outbox, cli: Cli, state: str) -> None:
    events = in_each_state(outbox)
    assert ids(cli.json("list", "--state", state)) == [events[state]]
    both = cli.json("list", "--state", state, "--state", "DEAD", "--relay", "relay")
    assert set(ids(both)) == {events[state], events["DEAD"]}


def test_oo_47_what_no_relay_wanted_is_listed_as_pending(outbox: Outbox, cli: Cli) -> None:
    outbox.register("other", ["other.*"])
    event = outbox.emit("order.created")
    rows = cli.json("list", "--state", "PENDING")["events"]
    assert [(r["event_id"], r["relay"], r["state"]) for r in rows] == [
        (str(event), None, "PENDING")
    ]
    assert "(no relay)" in cli("list", "--state", "PENDING")


def test_oo_48_ranges_of_created_at_include_their_start_and_not_their_end(
    outbox: Outbox, cli: Cli
) -> None:
    first, second, third = (outbox.emit(f"n.{n}") for n in range(3))
    at = {e: outbox.event(e)["created_at"].isoformat() for e in (first, second, third)}
    listed = cli.json("list", "--created-after", at[second], "--created-before", at[third])
    assert ids(listed) == [second]
    assert ids(cli.json("list", "--created-before", at[second])) == [first]
    assert ids(cli.json("list", "--created-after", "1h")) == [third, second, first]
    assert ids(cli.json("list", "--created-before", "1h")) == []
    dead = cli.json("list", "--state", "PENDING", "--created-after", at[second])
    assert ids(dead) == [third, second]


def test_oo_48_ranges_of_published_at_include_their_start_and_not_their_end(
    outbox: Outbox, cli: Cli
) -> None:
    relay = outbox.register("relay")
    events = []
    for n in range(3):
        events.append(outbox.emit(f"n.{n}"))
        outbox.publish(relay, outbox.claim(relay))
    outbox.emit("never.published")
    at = [outbox.event(e)["published_at"].isoformat() for e in events]
    listed = cli.json("list", "--published-after", at[1], "--published-before", at[2])
    assert ids(listed) == [events[1]]
    assert ids(cli.json("list", "--published-after", "1h")) == events[::-1]


def test_a_time_is_found_among_gaps_and_many_events(outbox: Outbox) -> None:
    for _ in range(5):
        outbox.sql(
            "INSERT INTO outbox.event (event_type, payload)"
            " SELECT 'x', '' FROM generate_series(1, 200)"
        )
        outbox.sql("SELECT setval('outbox.event_seq', nextval('outbox.event_seq') + 5000)")
    rows = outbox.sql("SELECT seq, created_at FROM outbox.event ORDER BY seq")
    with outbox.connect(autocommit=True) as conn, reading(conn):
        for _, at in rows[::97]:
            listed = select(conn, Filter(created_after=at), Page(limit=5000)).rows
            assert {r["seq"] for r in listed} == {s for s, created in rows if created >= at}


def test_oo_49_one_event_is_shown_whole(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = outbox.emit(
        "order.created",
        b'{"total": 42}',
        headers={"h": "1"},
        metadata={"source": "shop"},
        ordering_key="o-1",
        tenant_id="acme",
        max_attempts=4,
    )
    outbox.fail(relay, outbox.claim(relay), text="leader not available")
    shown = cli.json("show", event)
    assert shown["payload"] == '{"total": 42}'
    assert shown["payload_encoding"] == "utf-8"
    assert (shown["headers"], shown["metadata"]) == ({"h": "1"}, {"source": "shop"})
    assert shown["max_attempts"] == 4
    (delivery,) = shown["deliveries"]
    assert (delivery["relay"], delivery["attempts"], delivery["attempts_in_budget"]) == (
        "relay",
        1,
        1,
    )
    assert delivery["last_error"]["text"] == "leader not available"
    text = cli("show", event)
    for part in ("leader not available", "acme", '"total": 42', "relay relay: PENDING"):
        assert part in text


@pytest.mark.parametrize(
    ("payload", "how", "shown", "encoding"),
    [
        (b"plain", "auto", "plain", "utf-8"),
        (b'{"a": 1}', "json", {"a": 1}, "json"),
        (b"\xff\x00", "auto", "/wA=", "base64"),
        (b"\xff\x00", "hex", "ff00", "hex"),
        ("ü".encode(), "text", "ü", "utf-8"),
    ],
)
def test_oo_49_a_payload_is_shown_as_text_json_or_hex(
    outbox: Outbox, cli: Cli, payload: bytes, how: str, shown: object, encoding: str
) -> None:
    event = outbox.emit("x", payload)
    document = cli.json("show", event, "--payload", how)
    assert (document["payload"], document["payload_encoding"]) == (shown, encoding)
    cli("show", event, "--payload", how)
    assert "payload" not in cli.json("show", event, "--payload", "none")


def test_oo_49_a_long_payload_is_cut_unless_all_of_it_is_asked_for(
    outbox: Outbox, cli: Cli
) -> None:
    event = outbox.emit("x", b"y" * 200_000)
    assert len(cli("show", event)) < 10_000
    assert "--full" in cli.err
    assert "y" * 200_000 in cli("show", event, "--full")
    assert len(cli.json("show", event)["payload"]) == 200_000


def test_what_a_terminal_would_obey_is_not_printed(outbox: Outbox, cli: Cli) -> None:
    event = outbox.emit("x", b"\x1b[31mred", ordering_key="k\x1b[2J\n")
    assert "\x1b" not in cli("list") + cli("show", event)


def test_a_time_without_end_is_shown(outbox: Outbox, cli: Cli) -> None:
    event = outbox.emit("x", available_at=None)
    outbox.register("relay")
    late = outbox.emit("y", b"", **{"available_at": "infinity"})
    assert cli.json("show", late)["available_at"] == "infinity"
    assert "infinity" in cli("show", late)
    assert set(ids(cli.json("list"))) == {event, late}
    cli("list")


def test_oo_35_failures_are_visible_with_error_attempts_and_times(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("order.created")
    for text in ("first", "second"):
        outbox.fail(relay, outbox.claim(relay), text=text)
    (row,) = cli.json("list", "--error", "SECOND")["events"]
    assert row["event_id"] == str(event)
    assert row["attempts"] == 2
    assert row["last_error"]["at"]
    assert cli.json("list", "--error", "first")["events"] == []


def test_ce_14_errors_have_class_code_and_text(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    outbox.emit("order.created")
    outbox.fail(relay, outbox.claim(relay), State.DEAD, text="no leader")
    (row,) = cli.json("list", "--state", "DEAD", "--error", "test")["events"]
    error = row["last_error"]
    assert (error["class"], error["code"], error["text"]) == ("transient", "TEST", "no leader")


def test_oo_50_inspection_cannot_write(outbox: Outbox) -> None:
    outbox.emit("x")
    with outbox.connect(autocommit=True) as conn:
        with pytest.raises(StoreError, match="read-only"), reading(conn):
            conn.execute("INSERT INTO outbox.event (event_type, payload) VALUES ('x', '')")
        # and that is the transaction's doing, not the connection's
        conn.execute("INSERT INTO outbox.event (event_type, payload) VALUES ('x', '')")


def test_oo_50_every_inspection_works_for_the_reader_and_changes_nothing(
    outbox: Outbox, cli: Cli, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = in_each_state(outbox)
    name = f"reader_{uuid4().hex[:8]}"
    outbox.sql(f"CREATE ROLE {name} LOGIN IN ROLE outbox_reader")
    database = outbox.value("SELECT current_database()")
    before = outbox.sql("SELECT d::text, d.xmin::text FROM outbox.delivery d ORDER BY seq")
    monkeypatch.setenv("OUTBOX_DSN", postgres.dsn(database, name))
    event = events["DEAD"]
    for command in (
        ("list", "--created-after", "1h"),
        ("list", "--state", "PENDING"),
        ("show", event),
        ("dead",),
        ("dead", "--list"),
        ("stuck",),
        ("counts",),
        ("counts", "--exact"),
        ("trace", "c"),
        ("causes", event),
        ("effects", event),
        ("audit",),
        ("relays",),
    ):
        cli(*command)
        cli.json(*command)
    after = outbox.sql("SELECT d::text, d.xmin::text FROM outbox.delivery d ORDER BY seq")
    assert after == before
    outbox.sql(f"DROP OWNED BY {name}")
    outbox.sql(f"DROP ROLE {name}")


def test_oo_16_what_ended_long_ago_is_still_listed(outbox: Outbox, cli: Cli) -> None:
    events = in_each_state(outbox)
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload) SELECT 'x', '' FROM generate_series(1, 500)"
    )
    assert ids(cli.json("list", "--state", "DEAD")) == [events["DEAD"]]
    assert ids(cli.json("list", "--state", "PUBLISHED")) == [events["PUBLISHED"]]
    assert cli.json("show", events["PUBLISHED"])["deliveries"][0]["state"] == "PUBLISHED"


def test_ce_35_a_tenants_list_holds_no_other_tenants_events(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    mine = [outbox.emit("x", tenant_id="a", correlation_id="c") for _ in range(3)]
    for tenant in ("b", "aa", "A", None):
        outbox.emit("x", tenant_id=tenant, correlation_id="c")
    assert ids(cli.json("list", "--tenant", "a")) == mine[::-1]
    assert ids(cli.json("trace", "c", "--tenant", "a")) == mine
    assert ids(cli.json("list", "--tenant", "a", "--state", "PENDING")) == mine[::-1]
    outbox.fail(relay, outbox.claim(relay), State.DEAD)
    groups = cli.json("dead", "--tenant", "a")["groups"]
    assert sum(g["count"] for g in groups) == 3


def test_ce_05_list_filters_by_type_key_aggregate_attempts_and_relay(
    outbox: Outbox, cli: Cli
) -> None:
    relay = outbox.register("relay", ["order.*"])
    outbox.register("other", ["*"])
    one = outbox.emit("order.created", ordering_key="k1", aggregate_type="Order", aggregate_id="7")
    two = outbox.emit("order_created", ordering_key="k2", aggregate_type="Order", aggregate_id="8")
    outbox.fail(relay, outbox.claim(relay))
    assert set(ids(cli.json("list", "--type", "order.*"))) == {one}
    assert set(ids(cli.json("list", "--type", "order_*"))) == {two}
    assert set(ids(cli.json("list", "--key", "k2"))) == {two}
    assert set(ids(cli.json("list", "--key", "k2", "--state", "PENDING"))) == {two}
    assert ids(cli.json("list", "--key", "k2", "--relay", "relay")) == []
    assert set(ids(cli.json("list", "--aggregate", "Order:7"))) == {one}
    assert ids(cli.json("list", "--attempts-min", "1")) == [one]
    assert ids(cli.json("list", "--attempts-max", "0", "--relay", "relay")) == []
    assert ids(cli.json("list", "--relay", "relay")) == [one]
    cli("list", "--relay", "nobody", code=1)
    assert "relay, " in cli.err or "other, relay" in cli.err


@pytest.mark.parametrize("order", [(), ("--oldest-first",)])
@pytest.mark.parametrize("filters", [(), ("--state", "PENDING"), ("--key", "k")])
def test_pages_hold_every_row_once_and_never_cut_an_event(
    outbox: Outbox, cli: Cli, order: tuple[str, ...], filters: tuple[str, ...]
) -> None:
    for name in ("a", "b", "c"):
        outbox.register(name, ordering="Key" if name == "b" else "None")
    for _ in range(20):
        outbox.emit("x", ordering_key="k")
    seen: list[tuple[int, str]] = []
    after: tuple[object, ...] = ()
    while True:
        page = cli.json("list", "--limit", 7, *order, *filters, *after)
        seen += [(r["seq"], r["relay"]) for r in page["events"]]
        if page["next"] is None:
            break
        ((name, seq),) = page["next"].items()
        after = (f"--{name.replace('_', '-')}", seq)
    assert len(seen) == len(set(seen)) == 60
    seqs = [s for s, _ in seen]
    assert seqs == sorted(seqs, reverse=not order)


def test_the_next_page_is_shown_to_people_too(outbox: Outbox, cli: Cli) -> None:
    for _ in range(3):
        outbox.emit("x")
    cli("list", "--limit", 2)
    assert "--before-seq 2" in cli.err


@pytest.mark.parametrize("function", ["outbox.trace", "cli"])
def test_ce_26_all_events_of_a_correlation_id_in_order(
    outbox: Outbox, cli: Cli, function: str
) -> None:
    outbox.register("relay")
    events = []
    for kind in ("order.created", "payment.taken", "parcel.sent"):
        events.append(outbox.emit(kind, correlation_id="c-1"))
        outbox.emit("noise", correlation_id="c-2")
    if function == "cli":
        assert ids(cli.json("trace", "c-1")) == events
    else:
        assert [r[0] for r in outbox.sql("SELECT event_id FROM outbox.trace('c-1')")] == events


def test_tc_33_an_event_leads_to_the_request_that_it_came_from(outbox: Outbox, cli: Cli) -> None:
    event = outbox.emit("order.created", correlation_id="req-7")
    shown = cli.json("show", event)
    assert ids(cli.json("list", "--correlation", shown["correlation_id"])) == [event]


def test_oo_63_an_id_from_a_log_leads_to_the_row_and_to_its_trace(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    first = outbox.emit("order.created", correlation_id="req-9")
    second = outbox.emit("payment.taken", causation_id=first)
    outbox.fail(relay, outbox.claim(relay), text="no leader")
    from_log = str(second)
    shown = cli.json("show", from_log)
    assert shown["deliveries"][0]["last_error"]["text"] == "no leader"
    assert ids(cli.json("trace", shown["correlation_id"])) == [first, second]
    assert ids(cli.json("causes", from_log)) == [second, first]


def test_ce_28_a_chain_of_five_is_found_from_both_ends(outbox: Outbox, cli: Cli) -> None:
    outbox.register("relay")
    chain: list[UUID] = []
    for n in range(5):
        chain.append(outbox.emit(f"step.{n}", causation_id=chain[-1] if chain else None))
    side = outbox.emit("side.effect", causation_id=chain[1])
    assert ids(cli.json("causes", chain[-1])) == chain[::-1]
    effects = cli.json("effects", chain[0])["events"]
    assert [e["depth"] for e in effects] == [0, 1, 2, 2, 3, 4]
    assert {e["event_id"] for e in effects} == {str(e) for e in [*chain, side]}
    assert "step.4" in cli("causes", chain[-1])
    assert "      step.3" in cli("effects", chain[0])


def test_a_cause_outside_the_outbox_is_named(outbox: Outbox, cli: Cli) -> None:
    outside = uuid4()
    event = outbox.emit("x", causation_id=outside)
    cli("causes", event)
    assert str(outside) in cli.err


@pytest.mark.parametrize("command", ["show", "causes", "effects"])
def test_an_unknown_event_is_an_error_of_one_line(cli: Cli, command: str) -> None:
    unknown = uuid4()
    cli(command, unknown, code=1)
    assert cli.err == f"error: there is no event {unknown}\n"


def test_an_inspection_that_takes_too_long_shows_what_to_do(outbox: Outbox) -> None:
    with (
        outbox.connect(autocommit=True) as conn,
        pytest.raises(StoreError, match="narrow it down"),
        reading(conn, timeout=0.05),
    ):
        conn.execute("SELECT pg_sleep(5)")


def test_relays_are_listed_with_their_subscriptions(outbox: Outbox, cli: Cli) -> None:
    outbox.register("orders", ["order.*"], ["acme"], "Key")
    (relay,) = cli.json("relays")["relays"]
    assert (relay["name"], relay["event_types"], relay["tenants"]) == (
        "orders",
        ["order.*"],
        ["acme"],
    )
    assert "order.*" in cli("relays")


def test_what_people_see_is_in_utc(outbox: Outbox, cli: Cli) -> None:
    outbox.sql(
        f"ALTER DATABASE {outbox.value('SELECT current_database()')} SET timezone = 'Asia/Tokyo'"
    )
    event = outbox.emit("x", b"", **{"occurred_at": "2026-01-31T08:00:00+00"})
    assert cli.json("show", event)["occurred_at"] == "2026-01-31T08:00:00Z"
    assert "2026-01-31 08:00:00" in cli("show", event)


def test_inspection_reports_a_missing_schema(
    empty_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--dsn", empty_database]) == 1
    assert "outbox-relay migrate" in capsys.readouterr().err


def test_migrate_reports_what_it_did(
    empty_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "--dsn", empty_database]) == 0
    assert "applied 0001_baseline" in capsys.readouterr().out
    assert main(["migrate", "--dsn", empty_database]) == 0
    assert "nothing to do (version " in capsys.readouterr().out
    assert main(["list", "--dsn", empty_database]) == 0
