"""The comparison of memory and database finds what it is for, and a watch reports what lasts."""

import pytest

from dev.services import wait_until
from fixtures.agreement import SLACK, Memory, Watch, disagreements, forgotten
from fixtures.outbox import Holder, Outbox

pytestmark = pytest.mark.pg


def memory_of(holder: Holder, claims: set[int], line: dict[int, int] | None = None) -> Memory:
    lanes = frozenset(holder.lanes)
    return Memory("pod-1", holder.relay, holder.token, lanes, frozenset(claims), line or {})


def test_what_differs_is_named(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    outbox.emit(ordering_key="k")
    (claim,) = holder.claim()
    right = memory_of(holder, {claim.token})
    assert disagreements(outbox.conn, [right]) == set()
    assert disagreements(outbox.conn, [right._replace(lanes=right.lanes - {5})]) == {
        "lane 5 belongs to pod-1, which does not know it"
    }
    assert disagreements(outbox.conn, [right._replace(claims=frozenset())]) == {
        f"a claim of pod-1 has token {claim.token}, which no process knows"
    }
    assert len(disagreements(outbox.conn, [])) == 64 + 1
    assert disagreements(outbox.conn, [], owners=["somebody else"]) == set()
    outbox.sql("UPDATE outbox.lane SET token = NULL WHERE lane = 7")
    assert disagreements(outbox.conn, [right]) == {"pod-1 believes that it has lane 7"}


def test_a_watermark_above_what_is_in_line_is_named(outbox: Outbox) -> None:
    holder = Holder(outbox, outbox.register(ordering="Key"))
    outbox.emit(ordering_key="k")
    ((lane, seq),) = outbox.sql("SELECT lane, seq FROM outbox.deliveries")
    assert disagreements(outbox.conn, [memory_of(holder, set(), {lane: seq - 1})]) == set()
    assert disagreements(outbox.conn, [memory_of(holder, set(), {lane: seq})]) == {
        f"pod-1 does not look for seq {seq} in lane {lane}"
    }


def test_what_nobody_can_know_is_found_without_any_memory(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    outbox.emit()
    assert holder.claim()
    assert forgotten(outbox.conn) == set()
    outbox.end_leases()
    assert forgotten(outbox.conn) == {"a claim of pod-1 ended and was not taken back"}
    outbox.sql("DELETE FROM outbox.holder")
    assert len(forgotten(outbox.conn)) == 64 + 1


def test_a_watch_reports_what_lasts_and_nothing_else(outbox: Outbox) -> None:
    looks = iter(range(1_000_000))
    watch = Watch(
        outbox.dsn,
        lambda _: {"always", f"look {next(looks)}"},
        lambda: -SLACK / 2 + 0.15,  # so that 0.3 s are too long
    )
    wait_until(lambda: watch.lasted, 10, "something lasts")
    watch.stop()
    assert set(watch.lasted) == {"always"}
    with pytest.raises(AssertionError, match="always"):
        watch.assert_nothing_lasted()
