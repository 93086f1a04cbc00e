"""
Fencing tokens: who may finish a claim, and who may claim from a lane.

A process draws a token before it sends the statement that uses it. So if the answer is lost, it
still knows what may belong to it, and can ask the database for exactly that. Tokens are random and
not from a sequence: a server restored from a backup would hand out the same numbers again.
"""

import secrets

TOKEN_BITS = 62
"""Fits into a bigint, and is never negative."""


def fresh_token() -> int:
    """A token that nobody else has; never 0, which stands for nobody."""
    return secrets.randbits(TOKEN_BITS) + 1
