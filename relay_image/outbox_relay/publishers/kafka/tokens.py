"""
Tokens for OAUTHBEARER: read from a file or a variable, again before each expires.

librdkafka asks when four fifths of a token's life have passed, while the client is polled. A client
that is not polled may keep a token that has expired: then the broker refuses it, and the client is
replaced as after a changed password.
"""

import base64
import binascii
import json
import logging
import time

from outbox_core.contract.publishers.kafka import Sasl
from outbox_core.errors import SettingsError

log = logging.getLogger(__name__)

SHORTEST_LIFE_SECONDS = 10.0
"""librdkafka rejects a token that has expired, and waits ten seconds for another. The broker
refuses it at once, and gives the reason."""


class Tokens:
    """What the client calls whenever it needs one."""

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl
        self.last = self._read()

    def __call__(self, _: str) -> tuple[str, float]:
        """A token, and when it expires, in seconds since the epoch."""
        try:
            self.last = self._read()
        except SettingsError as error:  # an exception would reach the thread that polls
            log.warning("the last token stays in use: %s", error)
        now = time.time()
        expires = expiry(self.last)
        if expires is None:
            expires = now + self._sasl.token_lifetime.total_seconds()
        return self.last, max(expires, now + SHORTEST_LIFE_SECONDS)

    def _read(self) -> str:
        assert self._sasl.token is not None  # validated
        return self._sasl.token.read("kafka.sasl.token").strip()


def expiry(token: str) -> float | None:
    """As the JWT itself has it. Its signature is not checked here: that is the broker's
    business."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    found = claims.get("exp") if isinstance(claims, dict) else None
    return float(found) if isinstance(found, int | float) else None
