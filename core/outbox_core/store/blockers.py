"""
Blockers: which sessions hold locks on the outbox's tables, and for how long.

Called by `store.migrate` if it did not get a lock in time. Query texts are left out: they may
contain secrets.
"""

from datetime import timedelta
from typing import NamedTuple

from outbox_core.contract.values import format_duration
from outbox_core.store.connection import Connection, translated

MOST_BLOCKERS_SHOWN = 3
"""The oldest is most likely the one that blocks us."""

# Run after our own transaction was rolled back, because a failed one accepts no statements. So it
# lists what sessions hold; pg_blocking_pids only knows who blocks a session that is waiting now. A
# session of another user shows its age only to members of pg_read_all_stats.
HOLDERS = """
    SELECT l.pid, a.usename, a.application_name, a.state, now() - a.xact_start,
           array_agg(DISTINCT c.relname::text ORDER BY c.relname::text)
      FROM pg_locks l
      JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
                     AND c.relnamespace = to_regnamespace('outbox')
      LEFT JOIN pg_stat_activity a ON a.pid = l.pid
     WHERE l.granted AND l.locktype = 'relation' AND l.pid IS DISTINCT FROM pg_backend_pid()
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
     GROUP BY l.pid, l.virtualtransaction, a.usename, a.application_name, a.state, a.xact_start
     ORDER BY a.xact_start NULLS LAST LIMIT %s
"""


class Blocker(NamedTuple):
    pid: int | None
    """None: a prepared transaction."""
    user: str | None
    application: str | None
    state: str | None
    open_for: timedelta | None
    """None if we may not see it."""
    tables: list[str]

    def __str__(self) -> str:
        if self.pid is None:
            who = "a prepared transaction (see pg_prepared_xacts)"
        else:
            name = f" {self.application!r}" if self.application else ""
            who = f"pid {self.pid}{name} of {self.user or 'a system process'}"
        since = ""
        if self.open_for is not None:
            whole = timedelta(seconds=int(self.open_for.total_seconds()))
            since = f", open for {format_duration(whole)}"
        state = f", {self.state}" if self.state else ""
        return f"{who}{state}{since}, holds {', '.join(self.tables)}"


def blockers(conn: Connection) -> list[Blocker]:
    """The transactions that hold locks on our tables now, the oldest first."""
    with translated():
        return [Blocker(*row) for row in conn.execute(HOLDERS, (MOST_BLOCKERS_SHOWN,))]
