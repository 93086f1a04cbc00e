"""Look-ups go by index, among many finished events, also with statistics from before them."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self

import psycopg
import pytest
from psycopg.abc import Params
from psycopg.sql import SQL, Composable, Composed

from dev.services import Postgres
from fixtures.bulk import emit_many, history, published_together
from fixtures.outbox import Outbox
from outbox_core.model.lifecycle import State
from outbox_core.store.connection import Connection
from outbox_core.store.inspect import counts, problems
from outbox_core.store.inspect import event as event_of
from outbox_core.store.inspect.backlog import backlog, published
from outbox_core.store.inspect.listing import Filter, Page, compose, select
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


# A long history ---------------------------------------------------------------------------------

IN_LARGE_ROWS = 2_000_000
IN_SMALL_ROWS = 100_000
ALL = IN_LARGE_ROWS + IN_SMALL_ROWS
MOST_PAGES = 2500
"""An event that is looked up costs up to twenty, and a page has fifty; the events have 30,000."""
MORE_PAGES = {
    # Only the event has its type: it is looked up for the members of two rows, or more.
    "type": 15_000,
}


@pytest.fixture(scope="module")
def long(postgres: Postgres, migrated_template: str) -> Iterator[Outbox]:
    """Two relays published it, in rows of a thousand, of a hundred, and of five."""
    box = Outbox(postgres.create_database("long", migrated_template))
    box.sql("SET synchronous_commit = off")
    relay = box.register("relay")
    keyed = box.register("keyed", [f"order.{n}" for n in range(7)], ordering="Key")
    box.sql("ANALYZE")
    history(box, ALL)
    published_together(box, relay, 1, IN_LARGE_ROWS, 1000)
    published_together(box, relay, IN_LARGE_ROWS + 1, ALL, 5)
    published_together(box, keyed, 10, ALL, 100, step=10)
    emit_many(box, 5000)
    for _ in range(3):
        box.claim(relay, 1000)
    box.claim(relay, 1000, lease=timedelta(minutes=-1))
    box.fail(relay, box.claim(relay, 100), State.DEAD)
    box.fail(relay, box.claim(relay, 10))
    box.publish(relay, box.claim(relay, 10))
    yield box
    box.close()
    postgres.drop_database("long")


class Pages(psycopg.Cursor[Any]):
    """Adds up the pages that statements read: each is explained, and then executed."""

    read = 0

    def execute(self, query: Any, params: Params | None = None, **options: Any) -> Self:
        text = query.as_string(self) if isinstance(query, Composable) else query
        if text.lstrip().startswith(("SELECT", "WITH")):
            super().execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text, params)
            (row,) = self.fetchall()
            ((found,),) = row.values() if isinstance(row, dict) else row
            plan = found["Plan"]
            Pages.read += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return super().execute(query, params, **options)


def pages_of(outbox: Outbox, inspect: Callable[[Connection], object]) -> int:
    with outbox.connect(autocommit=True) as conn:
        inspect(conn)  # the first on a connection reads the catalogue
        conn.cursor_factory = Pages
        Pages.read = 0
        with reading(conn):
            inspect(conn)
    return Pages.read


def listings(at: datetime) -> Iterator[tuple[str, Filter, Page]]:
    published_, claimed = (State.PUBLISHED,), (State.CLAIMED,)
    narrow = {
        "time": Filter(),
        "key": Filter(key="k77"),
        "correlation": Filter(correlation="c5000"),
        "aggregate": Filter(aggregate=("Order", "77")),
        "tenant": Filter(tenant="t7"),
        "type": Filter(event_type="order.3"),
        "relay": Filter(relay="relay"),
        "relay and type": Filter(relay="keyed", event_type="order.3"),
        "published": Filter(states=published_),
        "published by relay": Filter(states=published_, relay="keyed"),
        "published and tenant": Filter(states=published_, tenant="t7"),
        "published and type": Filter(states=published_, event_type="order.3"),
        "claimed": Filter(states=claimed),
        "claimed by relay": Filter(states=claimed, relay="relay"),
        "claimed or published": Filter(states=claimed + published_),
        "dead": Filter(states=(State.DEAD,)),
        "pending": Filter(states=(State.PENDING,)),
        "failed": Filter(error="no luck"),
        "attempts": Filter(attempts_min=2),
    }
    minute = at + timedelta(minutes=1)
    yield "created then", Filter(created_after=at, created_before=minute), Page()
    yield "published then", Filter(published_after=at, published_before=minute), Page()
    for name, wanted in narrow.items():
        yield name, wanted, Page()
        yield f"{name}, oldest first", wanted, Page(oldest_first=True)
        if "claimed" in name or name in ("dead", "pending", "failed", "attempts"):
            continue
        yield f"{name}, from the middle", wanted, Page(before_seq=ALL // 2)
        yield f"{name}, from the middle on", wanted, Page(after_seq=ALL // 2, oldest_first=True)
        yield f"{name}, small rows", wanted, Page(before_seq=ALL - IN_SMALL_ROWS // 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("statistics", ["of an empty outbox", "of today"])
def test_ek_18_of_a_long_history_inspection_reads_few_pages(long: Outbox, statistics: str) -> None:
    if statistics == "of today":
        long.sql("VACUUM ANALYZE")
    event = long.value("SELECT event_id FROM outbox.event WHERE seq = %s", ALL // 3)
    at = long.value("SELECT created_at FROM outbox.event WHERE seq = %s", ALL // 3)
    read = {
        name: pages_of(long, partial(select, wanted=wanted, page=page))
        for name, wanted, page in listings(at)
    }
    read["show"] = pages_of(long, partial(event_of.show, event_id=event))
    read["effects"] = pages_of(long, partial(event_of.effects, event_id=event))
    read["dead, grouped"] = pages_of(long, problems.dead_groups)
    read["stuck"] = pages_of(long, problems.stuck)
    read["backlog"] = pages_of(long, partial(backlog, relay_id=1))
    too_many = {n: pages for n, pages in read.items() if pages > most_pages(n)}
    assert too_many == {}


def most_pages(name: str) -> int:
    return max([MOST_PAGES, *(most for part, most in MORE_PAGES.items() if part in name)])


def test_a_long_history_is_counted_by_reading_few_pages(long: Outbox) -> None:
    relay = long.value("SELECT id FROM outbox.relay WHERE name = 'relay'")
    rows = long.value("SELECT count(*) FROM outbox.published")
    assert published_is(long, relay) == (ALL + 10, False)
    assert pages_of(long, counts.cheap_counts) < rows / 5


def published_is(outbox: Outbox, relay: int) -> tuple[int, bool]:
    with outbox.connect(autocommit=True) as conn:
        return published(conn, relay)
