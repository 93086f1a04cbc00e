"""Where the servers are, and who we are there. Secrets are read for every new connection."""

import re
import ssl
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from outbox_core.contract.publishers.common import Tls
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
    if "@" in settings.hosts or "/" in settings.hosts:
        # Not repeated: there may be a password in it.
        raise SettingsError(
            "rabbitmq.hosts: write host or host:port, without amqp:// and without a login: "
            "username and password have fields of their own, and so has the vhost"
        )
    return [_address(part.strip(), settings) for part in settings.hosts.split(",")]


def _address(text: str, settings: RabbitMQSettings) -> Address:
    found = HOST_AND_PORT.fullmatch(text)
    port = int((found and found["port"]) or (PORT if settings.tls is None else TLS_PORT))
    if found is None or not 0 < port < 65536:
        raise SettingsError(f"rabbitmq.hosts: {text!r} is neither host nor host:port")
    try:
        if found["ip"]:
            return Address(str(IPv6Address(found["ip"])), port)
        found["name"].encode("idna")  # as it is looked up: no label empty, none too long
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
