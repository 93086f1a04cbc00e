"""Where a server is, by its URL. Called by `connection`, and to validate settings."""

import re
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from outbox_core.errors import SettingsError

DEFAULT_PORT = 4222
HOST = re.compile(r"(?=.{1,254}$)[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)


def address_of(url: str) -> tuple[str, int]:
    """Host and port; SettingsError if no connection can be made there."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if ":" in host:
            IPv6Address(host)
        elif not HOST.fullmatch(host):
            raise ValueError("it names no host")
        if port == 0:
            raise ValueError("there is no port 0")
    except ValueError as error:
        raise SettingsError(f"nats.servers: {url!r} cannot be connected to: {error}") from None
    return host, DEFAULT_PORT if port is None else port
