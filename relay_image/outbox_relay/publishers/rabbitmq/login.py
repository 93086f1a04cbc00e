"""Where the servers are, and who we are there. Secrets are read for every new connection."""

import ssl
from typing import NamedTuple

from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.errors import SettingsError

PORT, TLS_PORT = 5672, 5671
GUEST = "guest"


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Login(NamedTuple):
    mechanism: str
    response: bytes


def addresses(settings: RabbitMQSettings) -> list[Address]:
    return [_address(part.strip(), settings) for part in settings.hosts.split(",")]


def _address(text: str, settings: RabbitMQSettings) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # an address of IPv6 has colons of its own
        host, port = text, str(PORT if settings.tls is None else TLS_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise SettingsError(f"rabbitmq.hosts: {text!r} is neither host nor host:port")
    return Address(host, int(port))


def login(settings: RabbitMQSettings) -> Login:
    if settings.username is not None and settings.password is not None:
        name = settings.username.read("rabbitmq.username")
        word = settings.password.read("rabbitmq.password")
    elif settings.tls is not None and settings.tls.cert_file is not None:
        return Login("EXTERNAL", b"")
    else:
        name = word = GUEST
    return Login("PLAIN", b"\x00" + name.encode() + b"\x00" + word.encode())


def tls_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            word = tls.key_password.read("rabbitmq.tls.keyPassword") if tls.key_password else ""
            # Never None: it would ask at the terminal.
            context.load_cert_chain(tls.cert_file, tls.key_file, word)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"rabbitmq.tls: {error}") from None
    return context
