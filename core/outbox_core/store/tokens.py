"""
Fencing tokens: who may finish a claim, and who may claim from a lane.

A process draws a token before it sends the statement that uses it. So where the answer is lost it
still knows what may be its own, and asks the database for just that. At random and not from a
sequence: a server that was restored from a backup would give the same numbers out again, to others.
"""

import secrets

BITS = 62
"""As much as fits into a bigint, and never negative."""


def fresh_token() -> int:
    """One that nobody else has; 0 is nobody's."""
    return secrets.randbits(BITS) + 1
