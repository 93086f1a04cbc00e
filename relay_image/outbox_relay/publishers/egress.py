"""
Where an event may make the relay connect to: the guard against request forgery (SSRF).

The rule, for a host that an event names:

- The host must be in `allowedHosts`: an exact name, `*.example.com` (names below it, not
  itself) or `*` (any public name); each may end with a port, and then holds for that port only.
- Names of the cluster or of a local network (`.svc`, `.cluster.local`, `.internal`, `.local`,
  `localhost`, a name without a dot) need an entry that is itself such a name: `*` is not enough.
- A name that no entry spells out is resolved as it stands: the resolver's search list, which makes
  `kubernetes.default` a name of the cluster, does not apply to it.
- An IP address in place of a name must be in `allowedHosts` itself, or in `allowedNetworks`.
- Every address of a name must be public or in `allowedNetworks`. If one is not, all are refused:
  a name server that returns both hopes that we choose the wrong one (rebinding).
- Metadata services, link-local, multicast and unspecified addresses are refused even where an
  allowed network contains them.

The caller connects to the addresses returned and resolves nothing again; otherwise a second
answer could differ from the one that was judged. It follows no redirect.

A host that the resource itself fixes is `trusted`: its owner's decision, accepted as it is.
Whatever the host, unusual spellings are refused, not interpreted (127.1, 0x7f000001, full-width
digits, zones), because the next program may interpret them differently.
"""

import re
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from outbox_relay.publishers.addresses import IpAddress, why_inner, why_never

Resolver = Callable[[str, int], Sequence[str]]
"""From a name and a port to its IP addresses, best first. Raises OSError if there are none. A
final dot means that nothing may be added to the name (no search list)."""

INNER_SUFFIXES: Final = ("svc", "cluster.local", "internal", "local", "localhost", "localdomain")
PORTS: Final = {"http": 80, "https": 443}

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNPRINTABLE: Final = re.compile(r"[^\x21-\x7e]")
_BRACKETED: Final = re.compile(r"\[[^]]*\](:[0-9]+)?")
_ENTRY: Final = re.compile(r"(?P<host>\[[^]]+\]|[^:]+|[0-9a-fA-F:.]+?)(:(?P<port>[0-9]{1,5}))?")


class Blocked(Exception):
    """The relay must not connect there. The text shows why, and what would allow it."""


class Address(NamedTuple):
    family: socket.AddressFamily
    ip: str
    port: int


class Url(NamedTuple):
    scheme: str
    host: str
    """In lower case, without brackets and without a dot at its end."""
    port: int
    path: str
    """With the query."""


def system_resolver(host: str, port: int) -> Sequence[str]:
    """As the system resolves names. It has no time limit of its own: the caller must have one."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Egress:
    """Pure except for the resolver. Safe to call from several threads."""

    def __init__(
        self,
        allowed_hosts: Sequence[str],
        allowed_networks: Sequence[str],
        trusted: bool,
        resolver: Resolver = system_resolver,
    ) -> None:
        """ValueError, if an entry is neither a host nor a network."""
        self._hosts = [_parse_entry(entry) for entry in allowed_hosts]
        self._networks = [ip_network(network) for network in allowed_networks]
        self._trusted = trusted
        self._resolver = resolver

    def resolve(self, host: str, port: int) -> list[Address]:
        """The addresses that may be connected to, in the resolver's order. Blocked if there are
        none; an OSError of the resolver passes through: it is an outage, not a refusal."""
        host = normal_host(host)
        if not 0 < port < 65536:
            raise Blocked(f"there is no port {port}")
        literal = _as_ip(host)
        if not self._trusted:
            self._check_host(host, literal, port)
        found = [host] if literal is not None else self._resolver(self._asked(host, port), port)
        addresses = [self._allowed_address(host, text, port) for text in found]
        if not addresses:
            raise Blocked(f"{host} has no address")
        return addresses

    def _asked(self, host: str, port: int) -> str:
        """With a final dot where nothing may be added to it. Names that the resource has itself, or
        that have an inner network's suffix, may need the search list: that is how Services are
        addressed."""
        is_named = (host, None) in self._hosts or (host, port) in self._hosts
        return host if self._trusted or is_named or _is_inner_name(host) else f"{host}."

    def _check_host(self, host: str, literal: IpAddress | None, port: int) -> None:
        if literal is not None and self._is_in_networks(literal):
            return
        if any(_covers(entry, host, literal, port) for entry in self._hosts):
            return
        if literal is not None:
            cure = "an address must itself be in allowedHosts, or in a network of allowedNetworks"
        elif _is_inner_name(host):
            cure = "a name of an inner network must itself be in allowedHosts (`*` is not enough)"
        else:
            cure = "list it in allowedHosts to allow it"
        raise Blocked(f"{_shown(host, port)} is not an allowed host; {cure}")

    def _allowed_address(self, host: str, text: str, port: int) -> Address:
        ip = ip_address(text)
        family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
        address = Address(family, text, port)
        if self._trusted:
            return address
        shown = host if text == host else f"{host} has the address {ip}, which"
        if what := why_never(ip):
            raise Blocked(f"{shown} is never allowed for an event ({what})")
        what = why_inner(ip)
        # An IP address in place of a host has passed `_check_host`, so the resource allows it.
        if what is None or text == host or self._is_in_networks(ip):
            return address
        raise Blocked(f"{shown} is not public ({what}); list it in allowedNetworks to allow it")

    def _is_in_networks(self, ip: IpAddress) -> bool:
        return any(ip in network for network in self._networks)


def parse_url(url: str) -> Url:
    """Its parts; Blocked for whatever two programs might read differently."""
    if _UNPRINTABLE.search(url) or "\\" in url:
        raise Blocked(
            "the URL has a space, a backslash, a control character or a letter outside ASCII: "
            "encode it (%20, xn--...)"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Blocked(f"the URL is malformed: {error}") from None
    if parts.scheme not in PORTS:
        raise Blocked(f"the URL's scheme is {parts.scheme!r}, and only http and https are allowed")
    if "@" in parts.netloc:
        raise Blocked("the URL contains credentials; use the publisher's own fields for them")
    if not parts.hostname or parts.netloc.endswith(":"):
        raise Blocked("the URL has no host, or a colon without a port")
    if port == 0:
        raise Blocked("there is no port 0")
    # urlsplit removes the brackets, and whatever surrounds them.
    if "[" in parts.netloc and not _BRACKETED.fullmatch(parts.netloc):
        raise Blocked("the URL's host has brackets within it")
    host = f"[{parts.hostname}]" if parts.netloc.startswith("[") else parts.hostname
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(parts.scheme, normal_host(host), port or PORTS[parts.scheme], path)


def normal_host(host: str) -> str:
    """In lower case, without brackets and final dot; Blocked if it is neither name nor address."""
    if _UNPRINTABLE.search(host):
        raise Blocked(f"{ascii(host)[:100]} is not a host: write it in ASCII (xn--...)")
    name = host.lower()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
        if ":" not in name:
            raise Blocked(f"{host[:100]} is not a host: brackets are for IPv6")
    if "%" in name:
        raise Blocked(f"{host[:100]} is not a host: zones and percent signs are not allowed")
    if ":" in name:
        try:
            return str(IPv6Address(name))
        except ValueError:
            raise Blocked(f"{host[:100]} is not an IPv6 address") from None
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(name))
        except ValueError:
            raise Blocked(
                f"{host[:100]} is not a host: write an IPv4 address as four decimal numbers"
            ) from None
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Blocked(f"{host[:100]!r} is not a host name")
    return name


def _parse_entry(entry: str) -> tuple[str, int | None]:
    try:
        return str(IPv6Address(entry)), None
    except ValueError:
        pass
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not a host")
    host, port = match["host"], match["port"]
    wildcard, name = host.startswith("*."), host.removeprefix("*.")
    try:
        if host != "*":
            name = normal_host(name)
    except Blocked as error:
        raise ValueError(f"{entry!r}: {error}") from None
    if wildcard and _as_ip(name) is not None:
        raise ValueError(f"{entry!r}: an address has no names below it")
    return f"*.{name}" if wildcard else name, int(port) if port else None


def _covers(entry: tuple[str, int | None], host: str, literal: IpAddress | None, port: int) -> bool:
    pattern, only_port = entry
    if only_port is not None and only_port != port:
        return False
    if pattern == host:
        return True
    if literal is not None or not pattern.startswith("*"):
        return False
    if _is_inner_name(host) and not _is_inner_name(pattern.removeprefix("*.")):
        return False
    return pattern == "*" or host.endswith(pattern[1:])


def _is_inner_name(name: str) -> bool:
    if name == "*":
        return False
    return "." not in name or f".{name}".endswith(tuple(f".{suffix}" for suffix in INNER_SUFFIXES))


def _as_ip(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
