"""
Which IP addresses are public, and what the others are: the table behind `egress`.

Pure. `ipaddress.is_global` is not enough. It counts as global an address that stands for another
one (6to4, NAT64 of an inner address), and the public addresses at which clouds serve their inner
services. IPv6 works the other way round: only global unicast is public, and not all of it.
"""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

NAT64: Final = IPv6Network("64:ff9b::/96")
THIS_HOST: Final = IPv4Network("0.0.0.0/8")
LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")


def _table(rows: Iterable[tuple[str, str]]) -> tuple[tuple[IpNetwork, str], ...]:
    return tuple((ip_network(network), what) for network, what in rows)


NEVER_ALLOWED: Final = _table(
    [
        ("169.254.0.0/16", "link-local, where clouds serve metadata and credentials"),
        ("168.63.129.16/32", "a metadata service (Azure)"),
        ("100.100.100.200/32", "a metadata service (Alibaba Cloud)"),
        ("192.0.0.192/32", "a metadata service (Oracle Cloud)"),
        (str(THIS_HOST), "unspecified: this host itself"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved or broadcast"),
        ("fd00:ec2::/32", "a metadata service (AWS)"),
        ("fd20:ce::254/128", "a metadata service (Google Cloud)"),
        ("fd00:42::42/128", "a metadata service (Scaleway)"),
        ("fd00:100::100:200/128", "a metadata service (Alibaba Cloud)"),
        ("fd00:a9fe:a9fe::1/128", "a metadata service (Akamai)"),
        ("fd00:c1::a9fe:a9fe/128", "a metadata service (Oracle Cloud)"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
        ("::/128", "unspecified: this host itself"),
        ("::ffff:0:0/96", "an IPv4-mapped address"),
    ]
)
"""Not even where an allowed network contains them: a wide one, such as 0.0.0.0/0, is not meant to
expose the machine's credentials."""

INNER: Final = _table(
    [
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("100.64.0.0/10", "shared by carriers and clouds (CGNAT)"),
        ("127.0.0.0/8", "loopback"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("::1/128", "loopback"),
        ("::/96", "an IPv4-compatible address"),
        (str(LOCAL_NAT64), "NAT64 of a private network"),
        ("100::/64", "for discarded traffic"),
        ("2001::/32", "Teredo, which stands for another address"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "6to4, which stands for another address"),
        ("3fff::/20", "for documentation"),
        ("fc00::/7", "private (unique local)"),
        ("fec0::/10", "private (site-local)"),
    ]
)

GLOBAL_UNICAST: Final = IPv6Network("2000::/3")


def why_never(ip: IpAddress) -> str | None:
    """Why no event may reach this address, whatever the resource allows; None if one may."""
    for address in (ip, *_embedded(ip)):
        if what := _lookup(NEVER_ALLOWED, address):
            return what if address is ip else f"it stands for {address}: {what}"
    return None


def why_inner(ip: IpAddress) -> str | None:
    """What this address is if it is not public; None if it is."""
    if ip in NAT64:
        # In a cluster with IPv6 only, every IPv4 host in the world has such an address.
        inner = IPv4Address(int(ip) & 0xFFFFFFFF)
        what = why_inner(inner)
        return f"it stands for {inner}: {what}" if what else None
    if what := _lookup(INNER, ip):
        return what
    if ip.version == 6:
        return None if ip in GLOBAL_UNICAST else "reserved"
    return None if ip.is_global else "reserved"


def _lookup(table: Iterable[tuple[IpNetwork, str]], ip: IpAddress) -> str | None:
    return next((what for network, what in table if ip in network), None)


def _embedded(ip: IpAddress) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that a gateway may translate it to."""
    if ip.version == 4:
        return ()
    if ip.sixtofour is not None:
        return (ip.sixtofour,)
    if ip.teredo is not None:
        return ip.teredo
    if ip in NAT64 or 1 < int(ip) < 1 << 32:
        return (IPv4Address(int(ip) & 0xFFFFFFFF),)
    if ip in LOCAL_NAT64:
        return tuple(_locally_embedded(int(ip)))
    return ()


def _locally_embedded(ip: int) -> Iterator[IPv4Address]:
    """One for each prefix length that the network may have chosen (RFC 6052): 48, 56, 64 and 96. We
    cannot know which it is; a wrong one often yields nothing but zeros."""
    rest = (ip >> 64 & 0xFFFF) << 56 | ip & (1 << 56) - 1  # the octet between means nothing
    for number in (rest >> 40, rest >> 32, rest >> 24, rest):
        address = IPv4Address(number & 0xFFFFFFFF)
        if address not in THIS_HOST:
            yield address
