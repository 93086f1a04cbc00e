"""
Relays: their registration, and the events that no relay subscribed to when they arrived.

Called by `worker.relay` at the start and by `worker.keeper` from time to time.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from outbox_core.contract.settings import RelaySettings
from outbox_core.store.connection import Connection, translated

log = logging.getLogger("outbox.relay")

ORDERING = "SELECT ordering FROM outbox.relay WHERE name = %s"

# A change of the ordering moves waiting deliveries to other lanes, in the same transaction: with a
# large backlog that takes longer than any statement timeout.
NO_TIMEOUT = "SET LOCAL statement_timeout = 0"

REGISTER = "SELECT outbox.register_relay(%s, %s, %s, %s, %s)"

# A retired relay keeps its id, under another name.
REGISTERED = """
    SELECT EXISTS (SELECT 1 FROM outbox.relay
                    WHERE id = %s AND (name = %s OR retirement IS NOT NULL))
"""

ROUTE = "SELECT outbox.route_unmatched(%s)"

REGISTERED_AS = "SELECT id, version FROM outbox.relay WHERE id = %s"

RELAY_ID = "SELECT id FROM outbox.relay WHERE name = %s"


class Registered(NamedTuple):
    id: int
    version: int
    """Grows with every registration, of any relay, that changes something."""


def register(conn: Connection, settings: RelaySettings) -> Registered:
    """Register the subscription; matching events of statements that begin after its commit are ours
    too. Of statements already running, only events that no other relay gets: docs/relays.md."""
    with translated(), conn.transaction():
        known = conn.execute(ORDERING, (settings.name,)).fetchone()
        if known is not None and known[0] != settings.ordering:
            log.warning(
                "the ordering changes from %s to %s, and waiting events are moved to their lanes: "
                "with millions of events that takes minutes",
                known[0],
                settings.ordering,
                extra={"event": "ordering_changes"},
            )
        conn.execute(NO_TIMEOUT)
        relay = conn.execute(REGISTER, _registration(settings)).fetchone()
        row = conn.execute(REGISTERED_AS, relay).fetchone()
    assert row is not None
    return Registered(*row)


def agrees(registered: Mapping[str, Any], settings: RelaySettings) -> bool:
    """Does the registration match these settings?"""
    return _registration(settings) == (
        registered["name"],
        registered["event_types"],
        registered["tenants"],
        registered["ordering"],
        registered["notify"],
    )


def _registration(settings: RelaySettings) -> tuple[object, ...]:
    wants = settings.subscription
    return (
        settings.name,
        list(wants.event_types),
        None if wants.tenants is None else list(wants.tenants),
        settings.ordering,
        settings.polling.notify,
    )


def is_registered(conn: Connection, relay: int, name: str) -> bool:
    """Does the relay of this name have this id? It may not after a restore of the database."""
    with translated():
        row = conn.execute(REGISTERED, (relay, name)).fetchone()
    assert row is not None
    return bool(row[0])


def relay_id(conn: Connection, name: str) -> int | None:
    with translated():
        row = conn.execute(RELAY_ID, (name,)).fetchone()
    if row is None:
        return None
    return int(row[0])


def route_unmatched(conn: Connection, limit: int = 1000) -> int:
    """Offer unmatched events to relays that registered since; return how many were checked. Cheap
    if there are none. Called not only at registration, because an insert that began before it may
    commit after it."""
    with translated():
        row = conn.execute(ROUTE, (limit,)).fetchone()
    assert row is not None
    return int(row[0])
