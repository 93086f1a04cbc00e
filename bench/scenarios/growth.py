"""
Growth: the same drain beside millions of finished events, and beside transactions left open.

An open transaction keeps PostgreSQL from removing dead row versions. An idle reader holds only its
snapshot; an idle writer also holds its transaction id, which the watermark must respect.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import IsolationLevel

from bench.lab import Lab, Site
from bench.systems.ours import RELAY, Ours
from bench.workload import PLAIN
from outbox_core.store.migrate import migrate

CHUNK_EVENTS = 200_000

# Through every state of the lifecycle, because its rules bind superusers too.
CLAIM = """
    INSERT INTO outbox.batch (token, relay_id, claimed_at, claimed_by, lease_until, lanes, seqs)
    SELECT min(d.seq), d.relay_id, now(), 'bench', now() + interval '1 minute',
           array_agg(DISTINCT d.lane), array_agg(d.seq ORDER BY d.seq)
      FROM (SELECT relay_id, seq, lane, row_number() OVER (ORDER BY seq) / 2000 AS n
              FROM outbox.delivery WHERE state = 'PENDING') d
     GROUP BY d.relay_id, d.n
"""
PUBLISH = """
    INSERT INTO outbox.published (token, relay_id, results)
    SELECT token, relay_id, array_fill('bench[0]@1'::text, ARRAY[cardinality(seqs)])
      FROM outbox.batch
"""


@contextmanager
def finished(lab: Lab, system: Ours, rows: int) -> Iterator[str]:
    """The name of a database with that many published events, as a template."""
    postgres = lab.postgres(system.flavour)
    name = f"finished_{system.ordering.lower()}"
    dsn = postgres.create_database(name)
    migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "SELECT outbox.register_relay(%s, '{*}', NULL, %s, false)", (RELAY, system.ordering)
        )
        for first in range(0, rows, CHUNK_EVENTS):
            size = min(CHUNK_EVENTS, rows - first)
            conn.execute(system.load_sql, PLAIN.parameters(size, 1000, first))
            conn.execute(CLAIM)
            conn.execute(PUBLISH)
            conn.execute("VACUUM outbox.delivery")  # as autovacuum would over the weeks
        conn.execute("VACUUM (ANALYZE) outbox.event, outbox.delivery, outbox.published")
    yield name
    postgres.drop_database(name)


def idle_reader(site: Site) -> Callable[[], None]:
    conn = psycopg.connect(site.dsn, application_name="bench-idle-reader")
    conn.isolation_level = IsolationLevel.REPEATABLE_READ
    conn.execute("SELECT count(*) FROM outbox.relay")
    return conn.close


def idle_writer(site: Site) -> Callable[[], None]:
    conn = psycopg.connect(site.dsn, application_name="bench-idle-writer")
    conn.execute("SELECT pg_current_xact_id()")
    return conn.close
