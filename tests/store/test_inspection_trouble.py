"""What is dead and what is stuck: seeded, and found by the commands that look for it."""

from datetime import timedelta
from uuid import UUID

import pytest

from fixtures.cli import Cli
from fixtures.outbox import Holder, Outbox
from outbox_core.model.lifecycle import Hold, State

pytestmark = pytest.mark.pg


def dead_by(outbox: Outbox, relay: int, text: str) -> UUID:
    event = outbox.emit("order.created")
    outbox.fail(relay, outbox.claim(relay), State.DEAD, text=text)
    return event


def test_tc_29_dead_events_are_listed_with_their_error_and_how_to_replay_them(
    outbox: Outbox, cli: Cli
) -> None:
    event = dead_by(outbox, outbox.register("relay"), "message too large")
    text = cli("dead", "--list")
    assert str(event) in text
    assert "message too large" in text
    assert "outbox-relay replay" in cli.err
    cli("dead")
    assert "outbox-relay replay" in cli.err


def test_tc_42_dead_events_are_grouped_by_what_killed_them(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    large = [dead_by(outbox, relay, f"message of {n} bytes is too large") for n in range(5)]
    dead_by(outbox, relay, "unknown topic orders")
    document = cli.json("dead")
    first, second = document["groups"]
    assert (first["count"], first["text"]) == (5, "message of 4 bytes is too large")
    assert first["samples"] == [str(e) for e in large[:1:-1]]
    assert first["oldest"] <= first["newest"]
    assert (second["class"], second["code"], second["count"]) == ("transient", "TEST", 1)
    assert document["complete"]
    (by_type,) = cli.json("dead", "--group-by", "type")["groups"]
    assert (by_type["event_type"], by_type["count"]) == ("order.created", 6)
    assert "message of 4 bytes" in cli("dead")


def test_tc_42_events_are_found_by_retry_counts_and_time_range(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    outbox.emit("fine")
    often = outbox.emit("often")
    outbox.publish(relay, outbox.claim(relay, 1))
    for _ in range(4):
        outbox.fail(relay, outbox.claim(relay))
    rows = cli.json("list", "--attempts-min", 3, "--created-after", "1h")["events"]
    assert [r["event_id"] for r in rows] == [str(often)]


def test_oo_57_tc_42_a_claim_past_its_lease_is_stuck(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    outbox.emit("x")
    outbox.claim(relay, owner="pod-7", lease=timedelta(minutes=-1))
    (row,) = cli.json("stuck")["expired_claims"]
    assert row["claimed_by"] == "pod-7"
    assert "pod-7" in cli("stuck")


def test_oo_57_tc_42_what_fails_repeatedly_is_stuck(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay")
    event = outbox.emit("x")
    for _ in range(2):
        outbox.fail(relay, outbox.claim(relay))
    assert cli.json("stuck")["failing"] == []
    outbox.fail(relay, outbox.claim(relay), delay=60, text="no leader")
    (row,) = cli.json("stuck")["failing"]
    assert (row["event_id"], row["attempts_in_budget"]) == (str(event), 3)
    assert "no leader" in cli("stuck")
    assert cli.json("stuck", "--attempts", 4)["failing"] == []


def test_oo_57_a_key_that_a_dead_event_blocks_is_stuck(outbox: Outbox, cli: Cli) -> None:
    relay = outbox.register("relay", ordering="Key")
    first = outbox.emit("x", ordering_key="k")
    for _ in range(3):
        outbox.emit("x", ordering_key="k")
    outbox.emit("x", ordering_key="other")
    outbox.fail(relay, Holder(outbox, relay).claim(1), State.DEAD, hold=Hold.DEAD, text="poison")
    (row,) = cli.json("stuck", "--relay", "relay")["blocked_keys"]
    assert (row["event_id"], row["ordering_key"], row["waiting"]) == (str(first), "k", 3)
    assert "poison" in cli("stuck")
    assert "blocks its key" in cli("list", "--state", "DEAD")


def test_oo_57_what_no_relay_wants_is_stuck(outbox: Outbox, cli: Cli) -> None:
    outbox.register("relay", ["order.*"])
    for _ in range(2):
        outbox.emit("parcel.sent", tenant_id="acme")
    (row,) = cli.json("stuck")["unmatched"]
    assert (row["event_type"], row["tenant_id"], row["count"]) == ("parcel.sent", "acme", 2)


def test_oo_57_a_relay_that_claims_nothing_while_events_are_due_is_stuck(
    outbox: Outbox, cli: Cli
) -> None:
    relay = outbox.register("relay")
    for _ in range(2):
        outbox.emit("x")
    assert cli.json("stuck")["idle_relays"] == []
    outbox.sql("UPDATE outbox.delivery SET available_at = now() - interval '5 min'")
    (row,) = cli.json("stuck")["idle_relays"]
    assert (row["relay"], row["pending"]) == ("relay", 2)
    outbox.claim(relay, 1)
    assert cli.json("stuck")["idle_relays"] == []


def test_when_nothing_is_wrong_it_is_shown(outbox: Outbox, cli: Cli) -> None:
    outbox.register("relay")
    assert cli("stuck") == ""
    assert "nothing is stuck" in cli.err
    cli("dead")
    assert "nothing is dead" in cli.err
    cli("stuck", "--relay", "nobody", code=1)
