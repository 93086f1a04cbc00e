"""
The hot statements stay on their indexes, whatever lies in the table (EK-18, OO-16, CE-06).

Two million finished deliveries, and what is looked for is never found by reading them.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dev.services import Postgres
from fixtures.outbox import Holder, Outbox

pytestmark = [pytest.mark.pg, pytest.mark.slow, pytest.mark.timeout(600)]

FINISHED = 2_000_000


@pytest.fixture(scope="module")
def large(postgres: Postgres, migrated_template: str) -> Iterator[Outbox]:
    """Finished rows come by the superuser's back door: along the allowed transitions each would be
    written three times."""
    box = Outbox(postgres.create_database("large", migrated_template))
    box.sql("SET synchronous_commit = off")
    ids = [box.register("plain", ["never"]), box.register("ordered", ["never"], ordering="Key")]
    box.sql(
        "INSERT INTO outbox.event (event_type, payload, correlation_id, aggregate_type,"
        " aggregate_id, tenant_id, ordering_key)"
        " SELECT 't' || i %% 50, '', 'c' || i / 5, 'order', (i %% 9999)::text, 't' || i %% 100,"
        " 'k' || i %% 5000 FROM generate_series(1, %s) i",
        FINISHED // 10,
    )
    box.sql("ALTER TABLE outbox.delivery DISABLE TRIGGER delivery_starts_pending")
    with ThreadPoolExecutor() as both:
        list(both.map(finish_many, [box, box], ids, ["-1", "seq & 63"], ["NULL", "seq & 1023"]))
    box.sql("ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER delivery_starts_pending")
    box.sql("UPDATE outbox.relay SET event_types = '{*}', patterns = NULL")
    box.sql("SELECT setval('outbox.event_seq', %s)", FINISHED)
    box.sql("VACUUM ANALYZE outbox.delivery")
    box.sql("VACUUM ANALYZE outbox.event")
    yield box
    box.close()
    postgres.drop_database("large")


def finish_many(box: Outbox, relay: int, lane: str, key: str) -> None:
    with box.connect(autocommit=True) as conn:
        conn.execute("SET synchronous_commit = off")
        conn.execute(
            "INSERT INTO outbox.delivery (relay_id, seq, lane, key_hash, available_at, attempts,"
            " state, published_at)"
            f" SELECT {relay}, seq, {lane}, {key}, now(), 1,"
            " CASE WHEN seq % 100000 = 0 THEN 'DEAD'::outbox.state ELSE 'PUBLISHED' END,"
            " CASE WHEN seq % 100000 = 0 THEN NULL ELSE now() END"
            f" FROM generate_series(1, {FINISHED // 2}) seq"
        )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def explain(outbox: Outbox, query: str, *params: object) -> list[dict[str, Any]]:
    answer = outbox.value(f"EXPLAIN (FORMAT JSON) {query}", *params)
    plan = answer if isinstance(answer, list) else json.loads(answer)
    return list(nodes(plan[0]["Plan"]))


def assert_on_indexes(found: list[dict[str, Any]], index: str) -> None:
    kinds = {n["Node Type"] for n in found}
    assert "Seq Scan" not in kinds, found
    assert index in {n.get("Index Name") for n in found}, found


@pytest.mark.parametrize(
    ("index", "query"),
    [
        ("event_correlation", "SELECT * FROM outbox.event WHERE correlation_id = 'c77'"),
        (
            "event_aggregate",
            "SELECT * FROM outbox.event WHERE aggregate_type = 'order' AND aggregate_id = '42'",
        ),
        ("event_tenant", "SELECT * FROM outbox.event WHERE tenant_id = 't7' ORDER BY seq LIMIT 50"),
        ("event_key", "SELECT * FROM outbox.event WHERE ordering_key = 'k7' ORDER BY seq LIMIT 50"),
        (
            "event_time",
            "SELECT * FROM outbox.event WHERE event_type = 't7'"
            " AND created_at < (SELECT min(created_at) FROM outbox.event WHERE seq < 10)"
            " AND created_at > now() - interval '1 s'",
        ),
        ("event_pkey", "SELECT * FROM outbox.event WHERE seq > 100 ORDER BY seq LIMIT 50"),
        (
            "delivery_dead",
            "SELECT * FROM outbox.delivery WHERE relay_id = 1 AND state = 'DEAD' ORDER BY seq",
        ),
    ],
)
def test_ce_06_ek_03_ek_18_look_ups_use_their_indexes(
    large: Outbox, index: str, query: str
) -> None:
    assert_on_indexes(explain(large, query), index)


def buffers_of(outbox: Outbox, call: str, *params: object) -> int:
    """Pages touched by a statement, functions included."""
    plan = outbox.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}", *params)
    top = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


def test_ek_18_a_claim_touches_few_pages_among_millions_of_finished_rows(large: Outbox) -> None:
    large.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', '', 'k' || i %% 10 FROM generate_series(1, 200) i"
    )
    holder = Holder(large, 2)
    claim = "SELECT * FROM outbox.claim(1, 'plain', 'me', 7, 100, '1 min', 0, NULL, true, false)"
    ordered = (
        "SELECT * FROM outbox.claim(2, 'ordered', 'me', 8, 100, '1 min', 0, NULL, true, false,"
        f" {holder.token}, %s::smallint[], 100)"
    )
    # Under 60 pages an event, for its row, its indexes and its payload; a scan would be 30,000.
    assert buffers_of(large, claim) < 6_000
    assert buffers_of(large, ordered, holder.lanes) < 7_000
    # And a look that finds nothing is a few pages per lane.
    for _ in range(3):
        large.claim(1, limit=1000)
        holder.claim(limit=1000)
    assert buffers_of(large, claim) < 100
    assert buffers_of(large, ordered, holder.lanes) < 2_000


def test_ek_18_finalising_touches_only_its_rows(large: Outbox) -> None:
    large.sql(
        "INSERT INTO outbox.event (event_type, payload)"
        " SELECT 'a.b', '' FROM generate_series(1, 100)"
    )
    claims = large.claim(1, limit=100)
    assert len(claims) == 100
    finish = "SELECT * FROM outbox.finish_published(1, %s, %s, %s)"
    seqs = [c.seq for c in claims]
    assert buffers_of(large, finish, claims[0].token, seqs, ["r"] * 100) < 5_000


def test_a_transaction_held_open_does_not_slow_the_claim(large: Outbox) -> None:
    """With the watermark the scan starts where work is; without it, it steps over every entry
    that the open transaction keeps."""
    with large.connect() as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1 FROM outbox.relay")
        large.sql(
            "INSERT INTO outbox.event (event_type, payload)"
            " SELECT 'a.b', '' FROM generate_series(1, 60000)"
        )
        last = 0
        while claims := large.claim(1, limit=5000):
            large.publish(1, claims)
            last = max(c.seq for c in claims)
        claim = (
            "SELECT * FROM outbox.claim(1, 'plain', 'me', 7, 100, '1 min', %s,"
            " pg_postmaster_start_time(), false, false)"
        )
        blind, knowing = buffers_of(large, claim, 0), buffers_of(large, claim, last)
        started = time.monotonic()
        large.sql(claim, last)
        took = time.monotonic() - started
    assert knowing < 50 < 200 < blind
    assert took < 0.1
