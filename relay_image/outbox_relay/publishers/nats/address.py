"""Where a server is: from its URL to a socket. Called by `connection`, and to validate settings."""

import re
import socket
import threading
import time
from ipaddress import IPv6Address
from queue import Empty, SimpleQueue
from urllib.parse import urlsplit

from outbox_core.errors import SettingsError

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
    for ip in resolve(host, port, until):
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            return socket.create_connection((ip, port), timeout=left)
        except OSError as error:
            last = error
    raise last or TimeoutError("timed out")


def resolve(host: str, port: int, until: float) -> list[str]:
    """By a thread of its own, which nobody waits for too long: the system has its own patience."""
    answers: SimpleQueue[list[str] | OSError] = SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put([str(address[0]) for *_, address in found])
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError(str(error)))

    threading.Thread(target=ask, name="nats-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, until - time.monotonic()))
    except Empty:
        raise TimeoutError("its name was not resolved in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer
