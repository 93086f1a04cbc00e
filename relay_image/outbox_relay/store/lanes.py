"""
Lanes: which process of an ordered relay may claim which keys.

A process is one holder row with a lease; a lane belongs to one holder or to nobody. A lane changes
hands in two ways only: its holder lets go of it while nothing of it is in flight, or the holder's
lease ran out and everything it had is taken from it in one transaction (`worker.reaper`).
"""

from collections.abc import Sequence
from datetime import timedelta
from math import ceil
from typing import NamedTuple

from psycopg import Rollback

from outbox_relay.store.connection import Connection, translated

LANES = 64
"""As in `outbox.lane_of`: more processes than a database can feed, few enough to look into each."""

JOIN = """
    INSERT INTO outbox.holder (relay_id, owner, expires_at) VALUES (%s, %s, now() + %s)
    RETURNING token
"""

# Also after it ran out: as long as the row is there nobody has taken anything from us.
RENEW = "UPDATE outbox.holder SET expires_at = now() + %s WHERE token = %s"

# In this order, as whoever changes a key by hand: the lanes, then their holder. A claim under the
# old token locks its holder row: this waits until it has ended, and a later one finds the row gone.
FENCE = (
    "SELECT nextval('outbox.token_seq')",
    "UPDATE outbox.lane SET token = %(fresh)s WHERE relay_id = %(relay)s AND token = %(token)s",
    "UPDATE outbox.holder SET token = %(fresh)s WHERE token = %(token)s",
)

SHARES = """
    SELECT (SELECT count(*) FROM outbox.holder WHERE relay_id = %(relay)s AND expires_at > now()),
           (SELECT count(*) FROM outbox.lane WHERE relay_id = %(relay)s AND token IS NULL)
"""

# The holder row is locked, so that nobody takes over from us while we take more. A free lane with
# claimed events in it belonged to a relay that did not order: it is left until those have ended.
ACQUIRE = """
    WITH me AS (SELECT token FROM outbox.holder WHERE token = %(token)s FOR SHARE),
    free AS (
        SELECT l.lane FROM outbox.lane l
         WHERE l.relay_id = %(relay)s AND l.token IS NULL
           AND l.lane NOT IN (SELECT d.lane FROM outbox.delivery d
                               WHERE d.relay_id = %(relay)s AND d.state = 'CLAIMED')
         ORDER BY l.lane LIMIT %(wanted)s FOR UPDATE SKIP LOCKED)
    UPDATE outbox.lane l SET token = me.token FROM me, free
     WHERE l.relay_id = %(relay)s AND l.lane = free.lane
    RETURNING l.lane
"""

LET_GO = (
    "UPDATE outbox.lane SET token = NULL WHERE relay_id = %s AND token = %s AND lane = ANY (%s)"
)

LEAVE = """
    WITH freed AS (UPDATE outbox.lane SET token = NULL WHERE relay_id = %s AND token = %s)
    DELETE FROM outbox.holder WHERE token = %s
"""

EXPIRED = """
    SELECT token, owner FROM outbox.holder
     WHERE relay_id = %s AND expires_at < now() FOR UPDATE SKIP LOCKED
"""

HELD = "SELECT lane FROM outbox.lane WHERE relay_id = %s AND token = %s ORDER BY lane"


class Shares(NamedTuple):
    holders: int
    free: int

    @property
    def fair(self) -> int:
        return ceil(LANES / max(1, self.holders))


class Lanes:
    """The lanes of one relay, over one connection."""

    def __init__(self, conn: Connection, relay: int, owner: str, lease: timedelta) -> None:
        self._conn = conn
        self._relay = relay
        self._owner = owner
        self._lease = lease

    def join(self) -> int:
        """Become a holder without lanes; the token."""
        with translated():
            row = self._conn.execute(JOIN, (self._relay, self._owner, self._lease)).fetchone()
        assert row is not None
        return int(row[0])

    def renew(self, token: int) -> bool:
        """Are we still a holder? If so, for another lease."""
        with translated():
            return self._conn.execute(RENEW, (self._lease, token)).rowcount == 1

    def fence(self, token: int) -> int | None:
        """
        Hold what we hold under another token, which is returned: a claim that may still be under
        way under the old one has ended, or comes to nothing. None if we are no holder any more.
        """
        draw, lanes, holder = FENCE
        fresh: int | None = None
        with translated(), self._conn.transaction():
            row = self._conn.execute(draw).fetchone()
            assert row is not None
            values = {"relay": self._relay, "token": token, "fresh": row[0]}
            self._conn.execute(lanes, values)
            if not self._conn.execute(holder, values).rowcount:
                raise Rollback
            fresh = int(row[0])
        return fresh

    def shares(self) -> Shares:
        with translated():
            row = self._conn.execute(SHARES, {"relay": self._relay}).fetchone()
        assert row is not None
        return Shares(*row)

    def acquire(self, token: int, wanted: int) -> list[int]:
        """Up to so many free lanes; those that are ours now."""
        with translated():
            rows = self._conn.execute(
                ACQUIRE, {"relay": self._relay, "token": token, "wanted": wanted}
            )
            return sorted(lane for (lane,) in rows)

    def let_go(self, token: int, lanes: Sequence[int]) -> None:
        with translated():
            self._conn.execute(LET_GO, (self._relay, token, list(lanes)))

    def leave(self, token: int) -> None:
        """Stop being a holder. Only while nothing of our lanes is in flight."""
        with translated():
            self._conn.execute(LEAVE, (self._relay, token, token))

    def expired(self) -> list[tuple[int, str]]:
        """Holders whose lease ran out, locked until the caller's transaction ends."""
        with translated():
            return self._conn.execute(EXPIRED, (self._relay,)).fetchall()

    def held(self, token: int) -> list[int]:
        with translated():
            rows = self._conn.execute(HELD, (self._relay, token))
            return [lane for (lane,) in rows]
