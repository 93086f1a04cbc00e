"""
A selection that names its events finds them by index, and a chunk touches only its rows, wherever
they are.

Among many finished events, also with statistics from before them: a plan made while the table was
small must not read it all.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import sql

from dev.services import Postgres
from fixtures.bulk import Bulk, emit_many, end_all, replay_settings
from fixtures.outbox import Outbox
from fixtures.replay_places import publish_together
from outbox_core.store.reading import reading
from outbox_core.store.replay_selection import is_narrow, matching

pytestmark = [pytest.mark.pg, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS = 300_000


@pytest.fixture(scope="module")
def large(postgres: Postgres, migrated_template: str) -> Iterator[tuple[Outbox, int]]:
    box = Outbox(postgres.create_database("large_replays", migrated_template))
    box.sql("SET synchronous_commit = off")
    relay = box.register("relay", ordering="Key")
    emit_many(box, 100, keys=10)
    end_all(box, relay)
    box.sql("ANALYZE")
    box.sql("ALTER TABLE outbox.delivery SET (autovacuum_enabled = false)")
    box.sql("ALTER TABLE outbox.event SET (autovacuum_enabled = false)")
    box.sql("ALTER TABLE outbox.published SET (autovacuum_enabled = false)")
    arrive(box, EVENTS // 2)
    end_all(box, relay)  # each in a row of its own
    arrive(box, EVENTS // 2)
    publish_together(box, relay, size=1000)
    emit_many(box, 40, keys=10)
    end_all(box, relay, "DEAD")
    yield box, relay
    box.close()
    postgres.drop_database("large_replays")


def arrive(box: Outbox, events: int) -> None:
    box.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key, correlation_id, tenant_id,"
        " aggregate_type, aggregate_id)"
        " SELECT 'order.' || i %% 7, '', 'k' || i %% 5000, 'c' || i / 10, 't' || i %% 3, 'Order',"
        " (i %% 5000)::text FROM generate_series(1, %s) i",
        events,
    )


def pages(box: Outbox, query: str | sql.Composed, values: Any = None) -> int:
    statement = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}").format(
        sql.SQL(query) if isinstance(query, str) else query
    )
    row = box.conn.execute(statement, values).fetchone()
    assert row is not None
    top = row[0][0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


def test_what_names_its_events_is_found_by_index(large: tuple[Outbox, int]) -> None:
    box, relay = large
    some = box.value("SELECT event_id::text FROM outbox.event WHERE seq = 777")
    together = box.value("SELECT event_id::text FROM outbox.event WHERE seq = %s", EVENTS - 777)
    middle = box.value("SELECT created_at FROM outbox.event WHERE seq = %s", EVENTS + 120)
    out = {"states": ["PUBLISHED", "DEAD"]}
    selections: list[dict[str, Any]] = [
        {},
        {"eventTypes": ["order.*"]},
        {"errorMatches": "timed out"},
        {"created": {"after": middle.isoformat()}},
        {**out, "eventIds": [some, together]},
        {**out, "orderingKeys": ["k7", "k8"]},
        {**out, "correlationIds": ["c77", "c78"]},
        {**out, "aggregates": [{"type": "Order", "id": "7"}, {"type": "Order", "id": "8"}]},
        {**out, "orderingKeys": ["k7"], "eventTypes": ["order.*"], "tenants": ["t1"]},
    ]
    for analyzed in (False, True):
        if analyzed:
            box.sql("ANALYZE")
        for select in selections:
            settings = replay_settings(select=select)
            with reading(box.conn, timeout=0, whole_tables=not is_narrow(settings)):
                source, values = matching(box.conn, settings, relay)
                touched = pages(box, sql.SQL("SELECT d.seq {}").format(source), values)
            assert touched < 2000, f"{select}, analyzed: {analyzed}: {touched} pages"


@pytest.mark.parametrize("first", [1000, EVENTS - 1000])
@pytest.mark.parametrize("dense", [True, False])
def test_a_chunk_touches_only_its_rows(large: tuple[Outbox, int], dense: bool, first: int) -> None:
    box, _ = large
    select = {"orderingKeys": [f"k{first % 977}"], "states": ["PUBLISHED"]}
    if dense:
        ids = box.sql(
            "SELECT event_id::text FROM outbox.event WHERE seq BETWEEN %s AND %s",
            *(first, first + 59),
        )
        select = {"eventIds": [i for (i,) in ids], "states": ["PUBLISHED"]}
    bulk = Bulk(box, f"{first}-{dense}", select=select)
    assert bulk.matched == 60
    touched = pages(box, f"SELECT * FROM outbox.replay_take('{bulk.id}', 'worker')")
    # Under 60 pages an event, for its row or array and their indexes, and some per band; a scan is
    # 6000.
    assert 0 < touched < 3500
    assert bulk.progress().replayed > 0
