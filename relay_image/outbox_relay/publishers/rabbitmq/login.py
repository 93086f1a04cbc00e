"""Where the servers are, and who we are there. Secrets are read for every new connection."""

import re
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.errors import SettingsError

PORT, TLS_PORT = 5672, 5671
GUEST = "guest"

HOST_AND_PORT: Final = re.compile(
    # An address of IPv6 has colons of its own, and therefore brackets.
    r"(\[(?P<ip>[^\[\]]+)\]|(?P<name>[^\s\x00-\x1f:\[\]]+))(:(?P<port>[0-9]{1,5}))?"
)


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
    found = HOST_AND_PORT.fullmatch(text)
    port = int((found and found["port"]) or (PORT if settings.tls is None else TLS_PORT))
    if found is None or not 0 < port < 65536:
        raise SettingsError(f"rabbitmq.hosts: {text!r} is neither host nor host:port")
    try:
        if found["ip"]:
            return Address(str(IPv6Address(found["ip"])), port)
        found["name"].encode("idna")  # as resolving does it: no label empty, none too long
    except ValueError as error:
        raise SettingsError(f"rabbitmq.hosts: {text!r}: {error}") from None
    return Address(found["name"], port)


def login(settings: RabbitMQSettings) -> Login:
    if settings.username is not None and settings.password is not None:
        name = settings.username.read("rabbitmq.username")
        word = settings.password.read("rabbitmq.password")
    elif settings.tls is not None and settings.tls.cert_file is not None:
        return Login("EXTERNAL", b"")
    else:
        name = word = GUEST
    return Login("PLAIN", b"\x00" + name.encode() + b"\x00" + word.encode())
