"""
Lanes: which process of an ordered relay may claim which keys.

A process is one holder row with a lease; a lane belongs to one holder or to nobody. A lane changes
hands in two ways only: its holder releases it while nothing of it is in flight, or the holder's
lease has expired and everything it had is taken over in one transaction (`worker.reaper`).
"""

from collections.abc import Sequence
from datetime import timedelta
from math import ceil
from typing import NamedTuple

from outbox_core.store.connection import Connection, translated

LANES = 64
"""The same as `outbox.lanes()`, which gives the reason; a test compares them."""

# Repeated with the same token if the first answer was lost: then the row is already ours.
JOIN = """
    INSERT INTO outbox.holder (token, relay_id, owner, expires_at) VALUES (%s, %s, %s, now() + %s)
        ON CONFLICT (token) DO UPDATE SET expires_at = EXCLUDED.expires_at
"""

# Also after the lease has expired: as long as the row exists, nobody has taken anything over.
RENEW = "UPDATE outbox.holder SET expires_at = now() + %s WHERE token = %s"

# In the same lock order as an intervention by hand: the lanes, then their holder. A statement under
# the old token locks its holder row: FENCE_HOLDER waits until it has ended, and a later one does
# not find the row. Then the lanes once more, for those that such a statement acquired meanwhile.
FENCE_LANES = (
    "UPDATE outbox.lane SET token = %(fresh)s WHERE relay_id = %(relay)s AND token = %(token)s"
)
FENCE_HOLDER = "UPDATE outbox.holder SET token = %(fresh)s WHERE token = %(token)s"

IS_HOLDER = "SELECT EXISTS (SELECT 1 FROM outbox.holder WHERE token = %s)"

SEEN = """
    SELECT EXISTS (SELECT 1 FROM outbox.holder WHERE token = %(token)s),
           ARRAY(SELECT lane FROM outbox.lane
                  WHERE relay_id = %(relay)s AND token = %(token)s ORDER BY lane),
           (SELECT count(*) FROM outbox.holder WHERE relay_id = %(relay)s AND expires_at > now()),
           (SELECT count(*) FROM outbox.lane WHERE relay_id = %(relay)s AND token IS NULL)
"""

# The holder row is locked, so that nobody takes our lanes over while we acquire more. A free lane
# with claimed events is from when the relay did not order: it is left until those have ended.
ACQUIRE = """
    WITH me AS (SELECT token FROM outbox.holder WHERE token = %(token)s FOR KEY SHARE),
    free AS (
        SELECT l.lane FROM outbox.lane l
         WHERE l.relay_id = %(relay)s AND l.token IS NULL
           AND l.lane NOT IN (SELECT d.lane FROM outbox.delivery d
                               WHERE d.relay_id = %(relay)s AND d.state = 'CLAIMED')
           AND NOT EXISTS (SELECT 1 FROM outbox.batch b
                            WHERE b.relay_id = %(relay)s
                              AND (l.lane = ANY (b.lanes) OR -1 = ANY (b.lanes)))
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

# A holder that is gone does not come back, because every token is drawn once. Matched by lane and
# token, because the lane may have another holder by now.
FREE_ORPHANS = """
    UPDATE outbox.lane l SET token = NULL
      FROM (SELECT o.lane, o.token FROM outbox.lane o
             WHERE o.relay_id = %(relay)s AND o.token IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM outbox.holder h WHERE h.token = o.token)
            OFFSET 0) o
     WHERE l.relay_id = %(relay)s AND l.lane = o.lane AND l.token = o.token
"""

HELD = "SELECT lane FROM outbox.lane WHERE relay_id = %s AND token = %s ORDER BY lane"


class Seen(NamedTuple):
    """A holder and the relay's lanes, as the database has them."""

    is_holder: bool
    held: list[int]
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

    def join(self, token: int) -> None:
        """Become a holder without lanes; repeating it changes nothing."""
        with translated():
            self._conn.execute(JOIN, (token, self._relay, self._owner, self._lease))

    def renew(self, token: int) -> bool:
        """Extend our lease; return False if we are no longer a holder."""
        with translated():
            return self._conn.execute(RENEW, (self._lease, token)).rowcount == 1

    def fence(self, token: int, fresh: int) -> bool:
        """
        Hold our lanes under the fresh token instead: a statement that may still be running under
        the old one has ended, or has no effect. False if we are no longer a holder. Repeating it,
        because an answer was lost, changes nothing.
        """
        values = {"relay": self._relay, "token": token, "fresh": fresh}
        with translated(), self._conn.transaction():
            self._conn.execute(FENCE_LANES, values)
            if self._conn.execute(FENCE_HOLDER, values).rowcount:
                self._conn.execute(FENCE_LANES, values)
                return True
            row = self._conn.execute(IS_HOLDER, (fresh,)).fetchone()
        assert row is not None
        return bool(row[0])

    def seen(self, token: int) -> Seen:
        with translated():
            values = {"relay": self._relay, "token": token}
            row = self._conn.execute(SEEN, values).fetchone()
        assert row is not None
        return Seen(*row)

    def acquire(self, token: int, wanted: int) -> list[int]:
        """Take up to `wanted` free lanes; return those that we got."""
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

    def free_orphans(self) -> int:
        """Free lanes whose holder is gone and did not release them; return how many."""
        with translated():
            return self._conn.execute(FREE_ORPHANS, {"relay": self._relay}).rowcount

    def expired(self) -> list[tuple[int, str]]:
        """Holders whose lease has expired, locked until the caller's transaction ends."""
        with translated():
            return self._conn.execute(EXPIRED, (self._relay,)).fetchall()

    def held(self, token: int) -> list[int]:
        with translated():
            rows = self._conn.execute(HELD, (self._relay, token))
            return [lane for (lane,) in rows]
