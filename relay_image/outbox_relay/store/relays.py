"""
Relays: who is registered for what, and the events that came before anybody wanted them.

Called by `worker.relay` at the start and by `worker.keeper` from time to time.
"""

from outbox_relay.contract.settings import RelaySettings
from outbox_relay.store.connection import Connection, translated

REGISTER = "SELECT outbox.register_relay(%s, %s, %s, %s, %s)"

ROUTE = "SELECT outbox.route_unmatched(%s)"

RELAY_ID = "SELECT id FROM outbox.relay WHERE name = %s"


def register(conn: Connection, settings: RelaySettings) -> int:
    """Make the subscription known; from its commit on, every matching event is ours too."""
    wants = settings.subscription
    with translated():
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
