"""
Relays: who is registered for what, and the events that came before anybody wanted them.

Called by `worker.relay` at the start and by `worker.keeper` from time to time.
"""

import logging

from outbox_relay.contract.settings import RelaySettings
from outbox_relay.store.connection import Connection, translated

log = logging.getLogger("outbox.relay")

ORDERING = "SELECT ordering FROM outbox.relay WHERE name = %s"

# What waits changes lanes with the ordering, in the same transaction: no statement's timeout is
# above what that takes with a large backlog.
PATIENTLY = "SET LOCAL statement_timeout = 0"

REGISTER = "SELECT outbox.register_relay(%s, %s, %s, %s, %s)"

ROUTE = "SELECT outbox.route_unmatched(%s)"

RELAY_ID = "SELECT id FROM outbox.relay WHERE name = %s"


def register(conn: Connection, settings: RelaySettings) -> int:
    """Make the subscription known; from its commit on, every matching event is ours too."""
    wants = settings.subscription
    with translated(), conn.transaction():
        known = conn.execute(ORDERING, (settings.name,)).fetchone()
        if known is not None and known[0] != settings.ordering:
            log.warning(
                "the ordering changes from %s to %s, and what waits is put where it belongs: "
                "with millions of events that takes minutes",
                known[0],
                settings.ordering,
                extra={"happening": "ordering_changes"},
            )
        conn.execute(PATIENTLY)
        row = conn.execute(
            REGISTER,
            (
                settings.name,
                list(wants.event_types),
                None if wants.tenants is None else list(wants.tenants),
                settings.ordering,
                settings.polling.notify,
            ),
        ).fetchone()
    assert row is not None
    return int(row[0])


def relay_id(conn: Connection, name: str) -> int | None:
    with translated():
        row = conn.execute(RELAY_ID, (name,)).fetchone()
    if row is None:
        return None
    return int(row[0])


def route_unmatched(conn: Connection, limit: int = 1000) -> int:
    """Offer events that nobody wanted to whoever registered since; how many were looked at.
    Cheap when there are none: not only at registration, because an insert that began before it
    may commit after it."""
    with translated():
        row = conn.execute(ROUTE, (limit,)).fetchone()
    assert row is not None
    return int(row[0])
