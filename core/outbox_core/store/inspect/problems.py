"""
Problems: dead events grouped by their cause, and what is stuck.

Called by `cli` (`dead`, `stuck`). Reads bounded amounts: of a million dead events the newest show
what is wrong, and the result shows whether it is complete.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from outbox_core.store.connection import Connection
from outbox_core.store.inspect.backlog import backlog, fingerprint
from outbox_core.store.reading import THE_RELAYS, Row, fetch, the_relays

MOST_DEAD_READ = 100_000
"""Dead events that are read for grouping."""
MOST_COUNTED_BEHIND = 1000
"""Events that are counted behind a blocked key."""

NEWEST_DEAD = f"""
    SELECT r.name AS relay, d.last_error->>'class' AS class, d.last_error->>'code' AS code,
           d.last_error->>'text' AS text, (d.last_error->>'at')::timestamptz AS at,
           e.event_id, e.event_type, e.tenant_id, e.ordering_key
      FROM {THE_RELAYS} CROSS JOIN LATERAL (
               SELECT d.seq, d.last_error FROM outbox.delivery d
                WHERE d.relay_id = r.id AND d.state = 'DEAD'
                ORDER BY d.seq DESC LIMIT %(most)s) d
      JOIN outbox.event e ON e.seq = d.seq
     WHERE (%(tenant)s::text IS NULL OR e.tenant_id = %(tenant)s)
     ORDER BY d.seq DESC LIMIT %(most)s
"""  # noqa: S608 - constants only
GROUP_BY = {
    "error": ("relay", "class", "code", "kind"),
    "type": ("relay", "event_type"),
    "tenant": ("relay", "tenant_id"),
    "key": ("relay", "ordering_key"),
}


@dataclass
class Group:
    """Dead events with the same cause, or the same value of what they are grouped by."""

    by: Row
    count: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    samples: list[Any] = field(default_factory=list)
    """Ids of the newest ones."""

    def add(self, row: Row) -> None:
        self.count += 1
        if len(self.samples) < 3:
            self.samples.append(row["event_id"])
        if row["at"] is not None:
            self.oldest = min(self.oldest or row["at"], row["at"])
            self.newest = max(self.newest or row["at"], row["at"])


class DeadGroups(NamedTuple):
    groups: list[Group]
    complete: bool


def dead_groups(
    conn: Connection,
    by: str = "error",
    relay: str | None = None,
    tenant: str | None = None,
    most: int = MOST_DEAD_READ,
) -> DeadGroups:
    """The largest group first. Errors that differ only in numbers and ids are the same error; the
    text shown is that of the newest."""
    fields = GROUP_BY[by]
    rows = fetch(conn, NEWEST_DEAD, {**the_relays(conn, relay), "tenant": tenant, "most": most})
    groups: dict[tuple[object, ...], Group] = {}
    for row in rows:
        row["kind"] = fingerprint(row["text"] or "")
        key = tuple(row[f] for f in fields)
        shown = ["text" if f == "kind" else f for f in fields]
        groups.setdefault(key, Group({f: row[f] for f in shown})).add(row)
    return DeadGroups(sorted(groups.values(), key=lambda g: -g.count), len(rows) < most)


EVENT_COLUMNS = "r.name AS relay, e.event_id, e.seq, e.event_type, e.tenant_id, e.ordering_key"

# The lease has expired: its relay died or hangs, and nobody has reaped it yet. What was claimed for
# the first time is a member of a batch.
EXPIRED_CLAIMS = f"""
    SELECT {EVENT_COLUMNS}, d.claimed_by, d.claimed_at, d.lease_until, d.attempts
      FROM {THE_RELAYS} CROSS JOIN LATERAL (
              (SELECT d.seq, d.claimed_by, d.claimed_at, d.lease_until, d.attempts
                 FROM outbox.delivery d
                WHERE d.relay_id = r.id AND d.state = 'CLAIMED' AND d.lease_until < now()
                ORDER BY d.lease_until LIMIT %(limit)s)
               UNION ALL
              (SELECT m.seq, b.claimed_by, b.claimed_at, b.lease_until, 1
                 FROM outbox.batch b CROSS JOIN LATERAL unnest(b.seqs) AS m (seq)
                WHERE b.relay_id = r.id AND b.lease_until < now()
                ORDER BY b.lease_until, m.seq LIMIT %(limit)s)) d
      JOIN outbox.event e ON e.seq = d.seq
     ORDER BY d.lease_until, e.seq LIMIT %(limit)s
"""  # noqa: S608 - constants only

FAILING = f"""
    SELECT {EVENT_COLUMNS}, d.hold, d.attempts, d.attempts - d.attempts_base AS attempts_in_budget,
           d.crashes, d.available_at, d.last_error
      FROM {THE_RELAYS} CROSS JOIN LATERAL (
               SELECT d.* FROM outbox.delivery d
                WHERE d.relay_id = r.id AND d.state = 'PENDING' AND d.hold IN ('TIME', 'SUSPECT')
                  AND greatest(d.attempts - d.attempts_base, d.crashes) >= %(attempts)s
                LIMIT 10000) d
      JOIN outbox.event e ON e.seq = d.seq
     ORDER BY d.attempts - d.attempts_base DESC, e.seq LIMIT %(limit)s
"""  # noqa: S608 - constants only

# The events behind are counted by key and not by hold, because those that no relay has tried to
# claim since then are still in line.
BLOCKED = f"""
    SELECT {EVENT_COLUMNS}, d.last_error, (
               SELECT count(*) FROM (
                   SELECT 1 FROM outbox.event later
                     JOIN outbox.delivery w ON w.relay_id = r.id AND w.seq = later.seq
                    WHERE later.ordering_key = e.ordering_key AND later.seq > e.seq
                      AND w.state = 'PENDING'
                    LIMIT %(behind)s + 1) n) AS waiting
      FROM {THE_RELAYS} CROSS JOIN LATERAL (
               SELECT d.* FROM outbox.delivery d
                WHERE d.relay_id = r.id AND d.state = 'DEAD' AND d.hold = 'DEAD'
                ORDER BY d.seq LIMIT %(limit)s) d
      JOIN outbox.event e ON e.seq = d.seq
     ORDER BY waiting DESC, e.seq LIMIT %(limit)s
"""  # noqa: S608 - constants only

UNMATCHED_BY_TYPE = """
    SELECT e.event_type, e.tenant_id, count(*) AS count, min(e.created_at) AS oldest
      FROM (SELECT seq FROM outbox.unmatched ORDER BY seq DESC LIMIT 10000) u
      JOIN outbox.event e ON e.seq = u.seq
     GROUP BY 1, 2 ORDER BY 3 DESC LIMIT %(limit)s
"""

LIVE_CLAIM = """
    SELECT EXISTS (SELECT 1 FROM outbox.delivery d
                    WHERE d.relay_id = %(relay)s AND d.state = 'CLAIMED' AND d.lease_until > now())
        OR EXISTS (SELECT 1 FROM outbox.batch b
                    WHERE b.relay_id = %(relay)s AND b.lease_until > now()) AS there
"""


class Stuck(NamedTuple):
    expired_claims: list[Row]
    failing: list[Row]
    blocked_keys: list[Row]
    unmatched: list[Row]
    idle_relays: list[Row]


def stuck(
    conn: Connection, relay: str | None = None, attempts: int = 3, idle: float = 60, limit: int = 20
) -> Stuck:
    """
    `attempts`: failures in a row from which an event counts as failing repeatedly.
    `idle`: seconds for which events may be due while their relay has claimed nothing.
    """
    values = {
        **the_relays(conn, relay),
        "attempts": attempts,
        "limit": limit,
        "behind": MOST_COUNTED_BEHIND,
    }
    known = fetch(conn, "SELECT id, name, active FROM outbox.relay ORDER BY name")
    return Stuck(
        fetch(conn, EXPIRED_CLAIMS, values),
        fetch(conn, FAILING, values),
        fetch(conn, BLOCKED, values),
        fetch(conn, UNMATCHED_BY_TYPE, values) if relay is None else [],
        [
            found
            for r in known
            if relay in (None, r["name"]) and (found := _idle(conn, r, idle)) is not None
        ],
    )


def _idle(conn: Connection, relay: Row, longest: float) -> Row | None:
    seen = backlog(conn, relay["id"])
    if seen.oldest_pending_seconds < longest:
        return None
    if fetch(conn, LIVE_CLAIM, {"relay": relay["id"]})[0]["there"]:
        return None
    return {
        "relay": relay["name"],
        "active": relay["active"],
        "pending": seen.pending,
        "approximate": seen.approximate,
        "oldest_pending_seconds": seen.oldest_pending_seconds,
    }
