"""Look-ups go by index, among many finished events, also with statistics from before them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Composed

from fixtures.outbox import Outbox
from outbox_core.model.lifecycle import State
from outbox_core.store.inspect import event as event_of
from outbox_core.store.inspect.listing import Filter, Page, compose
from outbox_core.store.reading import reading

pytestmark = [pytest.mark.pg, pytest.mark.slow]

EVENTS = 100_000


@pytest.fixture
def full(outbox: Outbox) -> Outbox:
    relay = outbox.register("relay")
    outbox.register("keyed", ordering="Key")
    outbox.sql("ANALYZE")
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key, correlation_id, tenant_id,"
        " aggregate_type, aggregate_id)"
        " SELECT 'order.' || i % 7, '', 'k' || i % 1000, 'c' || i / 10, 't' || i % 3, 'Order',"
        f" (i % 5000)::text FROM generate_series(1, {EVENTS}) i".replace("%", "%%")
    )
    # By the superuser's back door: going through claims would take a minute.
    outbox.sql("ALTER TABLE outbox.delivery DISABLE TRIGGER delivery_keeps_the_rules")
    outbox.sql(
        "UPDATE outbox.delivery SET state = 'PUBLISHED', published_at = now(), attempts = 1"
        " WHERE relay_id = %s AND seq <= %s",
        relay,
        EVENTS - 10,
    )
    outbox.sql("ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_keeps_the_rules")
    return outbox


def explain(conn: psycopg.Connection[Any], query: Composed, values: dict[str, object]) -> str:
    rows = conn.execute(SQL("EXPLAIN (ANALYZE, TIMING OFF) ") + query, values)
    return "\n".join(line for (line,) in rows)


def rows_read(plan: str) -> int:
    """By all scans, with what was read and thrown away."""
    total = 0
    for line in plan.splitlines():
        if "Scan" in line and (m := re.search(r"actual rows=(\d+) loops=(\d+)", line)):
            total += int(m[1]) * int(m[2])
        if m := re.search(r"Rows Removed by .*: (\d+)", line):
            total += int(m[1])
    return total


LOOK_UPS = {
    "ek_03_correlation": Filter(correlation="c77"),
    "ek_05_aggregate": Filter(aggregate=("Order", "77")),
    "sequence_of_a_key": Filter(key="k7"),
    "key_of_a_tenant": Filter(key="k7", tenant="t1"),
    "tenant": Filter(tenant="t1"),
    "type_and_time": Filter(event_type="order.3", created_after=datetime(2000, 1, 1, tzinfo=UTC)),
    "ek_18_dead": Filter(states=(State.DEAD,)),
    "ek_18_claimed": Filter(states=(State.CLAIMED,)),
    "ek_18_pending": Filter(states=(State.PENDING,)),
    "ek_18_pending_of_one_relay": Filter(states=(State.PENDING,), relay="relay"),
}


def test_ce_06_ek_03_ek_05_ek_18_look_ups_go_by_index(full: Outbox) -> None:
    middle = full.value("SELECT created_at FROM outbox.event WHERE seq = %s", EVENTS // 2)
    look_ups = LOOK_UPS | {
        "oo_48_time": Filter(
            created_after=middle, created_before=middle + timedelta(milliseconds=1)
        )
    }
    for analyzed in (False, True):
        if analyzed:
            full.sql("ANALYZE")
        for name, wanted in look_ups.items():
            with full.connect(autocommit=True) as conn, reading(conn):
                plan = explain(conn, *compose(conn, wanted, Page()))
            assert "Seq Scan" not in plan, f"{name}: {plan}"
            if name != "oo_48_time":  # here all of the margin is one burst
                assert rows_read(plan) < EVENTS / 2, f"{name}: {plan}"


def test_tc_33_a_single_event_is_found_by_index(full: Outbox) -> None:
    event = full.value("SELECT event_id FROM outbox.event WHERE seq = 77")
    with full.connect(autocommit=True) as conn, reading(conn, timeout=2):
        assert event_of.show(conn, event)["seq"] == 77
        for query in (event_of.CAUSES, event_of.EFFECTS):
            plan = explain(conn, SQL(query).format(), {"event_id": event, "limit": 10})
            assert rows_read(plan) < 1000, plan
