"""
Facts about a database that decide whether events are delivered from it.

Called by `cli` (`check`). Gathers only; `store.doctor.diagnosis` interprets. Names are looked up in
the catalogue as text and not as regclass, because that needs the very rights that are checked.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from outbox_core.store.connection import Connection, is_pooled, translated
from outbox_core.store.migrate import (
    KNOWN,
    changed_migrations,
    other_code,
    read_applied,
    serves_us,
)


class Holder(NamedTuple):
    """A session, transaction, slot or standby that prevents the cleanup of old row versions."""

    what: str
    """session, prepared transaction, replication slot or standby"""
    name: str
    """The process id, or the name of the slot or transaction."""
    user: str
    application: str
    state: str
    seconds: float | None
    """How long it has been open; not known of slots."""
    xids: int
    """How many transactions ago its snapshot was taken."""


@dataclass(frozen=True)
class Facts:
    version: int
    """As 150004."""
    user: str
    in_recovery: bool
    settings: dict[str, str]
    connections: int
    pooled: bool
    skew: float
    """Seconds by which the database's clock is ahead of ours."""
    schema: int
    """0: there is none, or this user cannot see it."""
    serves_us: bool = True
    """If the schema is newer than this program: whether it still serves it."""
    changed_migrations: list[str] = field(default_factory=list)
    """Migrations of which the database has another text than this program."""
    other_code: list[str] = field(default_factory=list)
    """If the schema has our version: the parts of the code that differ from this program's."""
    may_use_schema: bool = False
    missing: list[str] = field(default_factory=list)
    """Rights that a relay needs and this user lacks."""
    disabled_triggers: list[str] = field(default_factory=list)
    missing_triggers: list[str] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    hidden_sessions: int = 0
    unmatched: bool = False


SERVER = """
    SELECT current_setting('server_version_num')::integer, current_user, pg_is_in_recovery(),
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
           (SELECT jsonb_object_agg(name, setting) FROM pg_settings WHERE name = ANY (%s)),
           clock_timestamp()
"""
SETTINGS = [
    "autovacuum",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "max_connections",
    "superuser_reserved_connections",
    "synchronous_commit",
    "track_counts",
]

SCHEMA = """
    SELECT coalesce(bool_or(has_schema_privilege(oid, 'USAGE')), false), count(*) > 0
      FROM pg_namespace WHERE nspname = 'outbox'
"""

# What the migrations and grants.sql grant to outbox_relay.
MISSING = """
    SELECT format('%%s on %%s', need.privilege, need.name)
      FROM (VALUES
            ('event', 'SELECT'), ('delivery', 'SELECT'),
            ('delivery', 'UPDATE'), ('batch', 'SELECT'), ('batch', 'INSERT'), ('batch', 'UPDATE'),
            ('batch', 'DELETE'), ('published', 'SELECT'), ('published', 'INSERT'),
            ('published', 'UPDATE'), ('relay', 'SELECT'), ('relay', 'INSERT'), ('relay', 'UPDATE'),
            ('unmatched', 'SELECT'), ('unmatched', 'UPDATE'), ('unmatched', 'DELETE'),
            ('holder', 'SELECT'), ('holder', 'INSERT'), ('holder', 'UPDATE'), ('holder', 'DELETE'),
            ('lane', 'SELECT'), ('lane', 'INSERT'), ('lane', 'UPDATE'), ('lane', 'DELETE'),
            ('audit', 'SELECT'), ('audit', 'INSERT'), ('schema_version', 'SELECT'),
            ('schema_code', 'SELECT')
           ) AS need (name, privilege)
      JOIN pg_class c ON c.relname = need.name
      JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'outbox'
     WHERE NOT has_table_privilege(c.oid, need.privilege)
    UNION ALL
    SELECT format('SELECT on %%s', c.relname)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'outbox'
     WHERE c.relname = 'event_seq' AND NOT has_sequence_privilege(c.oid, 'SELECT')
    UNION ALL
    SELECT format('EXECUTE on %%s()', p.proname)
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'outbox'
     WHERE p.prorettype <> 'trigger'::regtype
       AND p.proname NOT IN ('emit', 'first_twin', 'derive_idempotency_key', 'slot_of', 'require')
       AND NOT has_function_privilege(p.oid, 'EXECUTE')
     ORDER BY 1
"""

# Without these triggers nothing is guaranteed. D = disabled, R = on replicas only.
TRIGGERS = """
    SELECT t.tgname, t.tgenabled FROM pg_trigger t
      JOIN pg_class c ON c.oid = t.tgrelid
      JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'outbox'
     WHERE NOT t.tgisinternal
"""
OUR_TRIGGERS = {
    "audit_only_grows",
    "batch_begins",
    "batch_changes",
    "batch_gives_deliveries",
    "batch_is_not_truncated",
    "batch_takes_deliveries",
    "delivery_is_kept",
    "delivery_is_not_truncated",
    "delivery_keeps_its_lane",
    "delivery_keeps_the_rules",
    "delivery_keeps_its_past",
    "delivery_starts_pending",
    "event_arrives",
    "event_fans_out",
    "event_is_immutable",
    "event_is_not_truncated",
    "lane_is_kept",
    "lane_is_not_truncated",
    "published_begins",
    "published_changes",
    "published_comes_back",
    "published_gives_deliveries",
    "published_is_not_truncated",
    "published_takes_batch",
    "relay_has_its_lanes",
    "relay_is_kept",
    "relay_is_not_truncated",
    "relay_means_its_types",
    "replay_chunk_is_kept",
    "replay_ends_once",
    "replay_is_kept",
    "replay_is_planned_once",
    "replay_keeps_its_request",
    "replay_ledger_is_kept",
    "replay_needs_its_plan",
    "slot_is_kept",
    "unmatched_is_kept",
    "unmatched_is_not_truncated",
    "unmatched_keeps_its_event",
}

# Sessions of other databases do not matter to our tables; slots and standbys of any do.
HOLDERS = """
    SELECT 'session', pid::text, coalesce(usename, ''), coalesce(application_name, ''),
           coalesce(state, ''), extract(epoch FROM now() - xact_start)::float8,
           coalesce(age(coalesce(backend_xmin, backend_xid)), 0)
      FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    UNION ALL
    SELECT 'prepared transaction', gid, owner, '', 'prepared',
           extract(epoch FROM now() - prepared)::float8, age(transaction)
      FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name, '', coalesce(plugin, 'physical'),
           CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL, age(xmin)
      FROM pg_replication_slots WHERE xmin IS NOT NULL
    UNION ALL
    SELECT 'standby', pid::text, coalesce(usename, ''), coalesce(application_name, ''),
           coalesce(state, ''), NULL, age(backend_xmin)
      FROM pg_stat_replication WHERE backend_xmin IS NOT NULL
     ORDER BY 6 DESC NULLS LAST, 7 DESC LIMIT 10
"""
HIDDEN = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND query = '<insufficient privilege>'
"""

# From a sample of the newest events: there is no index by type, and none is needed.
KINDS = """
    SELECT DISTINCT e.event_type, e.aggregate_type, e.tenant_id
      FROM (SELECT * FROM outbox.event ORDER BY seq DESC LIMIT %s) e
     WHERE e.event_type <> 'outbox.sentinel' ORDER BY 1, 2, 3 LIMIT 1000
"""


class EventKind(NamedTuple):
    """The fields of an event that a topic template may use."""

    event_type: str
    aggregate_type: str | None
    tenant_id: str | None


def gather(conn: Connection) -> Facts:
    with translated():
        asked = datetime.now(UTC)
        server = _row(conn, SERVER, (SETTINGS,))
        middle = asked + (datetime.now(UTC) - asked) / 2
        may_use, there = _row(conn, SCHEMA)
        facts: dict[str, Any] = {
            "version": server[0],
            "user": server[1],
            "in_recovery": server[2],
            "connections": server[3],
            "settings": server[4],
            "pooled": is_pooled(conn),
            "skew": (server[5] - middle).total_seconds(),
            "schema": 0,
            "may_use_schema": may_use or not there,
            "holders": [Holder(*row) for row in conn.execute(HOLDERS)],
            "hidden_sessions": _row(conn, HIDDEN)[0],
        }
        if may_use and _may_read_version(conn):
            applied = read_applied(conn)
            facts["schema"] = applied.version
            facts["changed_migrations"] = changed_migrations(applied)
        if there:
            enabled: dict[str, str] = dict(conn.execute(TRIGGERS).fetchall())
            facts["missing"] = [row[0] for row in conn.execute(MISSING, ())]
            facts["disabled_triggers"] = sorted(
                name for name in OUR_TRIGGERS if enabled.get(name) in ("D", "R")
            )
            facts["missing_triggers"] = sorted(OUR_TRIGGERS - enabled.keys())
        if facts["schema"] > KNOWN:
            facts["serves_us"] = serves_us(conn)
        is_ours = facts["schema"] == KNOWN and not facts["changed_migrations"]
        if is_ours and not facts["missing"]:
            facts["other_code"] = [part.name for part in other_code(conn)]
        if facts["schema"] and not facts["missing"]:
            there = _row(conn, "SELECT EXISTS (SELECT 1 FROM outbox.unmatched)")[0]
            facts["unmatched"] = bool(there)
    return Facts(**facts)


def event_kinds(conn: Connection, newest: int = 10_000) -> list[EventKind]:
    """The kinds of event among the newest ones."""
    with translated():
        return [EventKind(*row) for row in conn.execute(KINDS, (newest,))]


def _row(conn: Connection, query: str, values: tuple[object, ...] = ()) -> tuple[Any, ...]:
    row = conn.execute(query, values).fetchone()
    assert row is not None
    return row


def _may_read_version(conn: Connection) -> bool:
    query = """
        SELECT coalesce(bool_or(has_table_privilege(c.oid, 'SELECT')), false) FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'outbox'
         WHERE c.relname = 'schema_version'
    """
    return bool(_row(conn, query)[0])
