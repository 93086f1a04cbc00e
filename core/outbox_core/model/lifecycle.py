"""
The lifecycle: the four states, the moves between them, and why a delivery waits.

The database enforces the same rules (`schema/functions/lifecycle.sql`); a test compares the two.
"""

from enum import StrEnum


class State(StrEnum):
    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    PUBLISHED = "PUBLISHED"
    DEAD = "DEAD"


class Hold(StrEnum):
    """Why a delivery is held back; NONE: it is in line."""

    NONE = "NONE"
    TIME = "TIME"
    SUSPECT = "SUSPECT"
    KEY = "KEY"
    DEAD = "DEAD"


TRANSITIONS = frozenset(
    {
        (State.PENDING, State.CLAIMED),
        (State.CLAIMED, State.PUBLISHED),
        (State.CLAIMED, State.PENDING),
        (State.CLAIMED, State.DEAD),
        (State.PUBLISHED, State.PENDING),
        (State.DEAD, State.PENDING),
    }
)
"""Every other move is refused. The last two happen by replay only."""

TERMINAL = frozenset({State.PUBLISHED, State.DEAD})
