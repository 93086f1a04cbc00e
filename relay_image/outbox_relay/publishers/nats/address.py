"""Where a server is: from its URL to a socket. Called by `connection`, and to validate settings."""

import re
import socket
import time
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from outbox_core.errors import SettingsError
from outbox_relay.publishers.resolving import look_up

DEFAULT_PORT = 4222
HOST = re.compile(r"(?=.{1,254}$)[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)


def address_of(url: str) -> tuple[str, int]:
    """Host and port; SettingsError if nobody can connect there."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if ":" in host:
            IPv6Address(host)
        elif not HOST.fullmatch(host):
            raise ValueError("it names no host")
        if port == 0:
            raise ValueError("port 0 is none")
    except ValueError as error:
        raise SettingsError(f"nats.servers: {url!r} cannot be connected to: {error}") from None
    return host, DEFAULT_PORT if port is None else port


def connect(host: str, port: int, until: float) -> socket.socket:
    """To the first of the host's addresses that answers; one deadline for all of them."""
    last: OSError | None = None
    for *_, address in look_up(host, port, until):
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            return socket.create_connection(address[:2], timeout=left)
        except OSError as error:
            last = error
    raise last or TimeoutError("timed out")
