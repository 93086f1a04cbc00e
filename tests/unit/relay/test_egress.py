"""Where an event may make the relay connect to. No test resolves a name in the network."""

import socket
from collections.abc import Sequence

import pytest

from outbox_relay.publishers.egress import Address, Blocked, Egress, parse_url

NAMES = {
    "hooks.example.com": ["93.184.216.34", "2606:2800:220:1::1"],
    "example.com": ["93.184.216.34"],
    "evil.example.com": ["127.0.0.1"],
    "both.example.com": ["93.184.216.34", "10.0.0.5"],
    "last.example.com": ["10.0.0.5", "93.184.216.34"],
    "metadata.example.com": ["169.254.169.254"],
    "mapped.example.com": ["::ffff:10.0.0.5"],
    "zone.example.com": ["fe80::1%2"],
    "dns64.example.com": ["64:ff9b::5db8:d822"],
    "xn--bcher-kva.example.com": ["93.184.216.34"],
    "none.example.com": [],
    "metadata.google.internal": ["169.254.169.254"],
    "billing.shop.svc": ["10.96.0.7"],
    "billing.shop.svc.cluster.local": ["10.96.0.7"],
    "localhost": ["127.0.0.1", "::1"],
    "billing": ["10.96.0.7"],
    "outside.internal": ["93.184.216.34"],
}


def resolver(host: str, port: int) -> Sequence[str]:
    return NAMES[host.removesuffix(".")]  # KeyError: a host that ought not to have come this far


def guard(
    hosts: Sequence[str] = ("*",), networks: Sequence[str] = (), trusted: bool = False
) -> Egress:
    return Egress(hosts, networks, trusted, resolver)


PUBLIC = ["hooks.example.com", "HOOKS.Example.COM", "hooks.example.com.", "dns64.example.com",
          "xn--bcher-kva.example.com"]  # fmt: skip

STRANGE_SPELLINGS = [
    "127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "0", "00000177.1",
    "127.0.0.01", "1.2.3", "1.2.3.4.5", "256.1.1.1", "0x", "１２７.0.0.1", "127。0。0。1",
    "bücher.example.com", "ⓛocalhost", "fe80::1%eth0", "[fe80::1%25eth0]", "[127.0.0.1]",
    "example.com..", ".example.com", "a..b.com", "", ".", "exa mple.com", "example.com\n",
    "example.com\x00", "example.com\\@evil.com", "user@example.com", "example.com/x", "-a.com",
    "%31%32%37.0.0.1", "example.com:80", "[::1", "::1]", ":::1", "a" * 64 + ".com",
]  # fmt: skip

INNER = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "100.64.0.1", "100.127.255.255", "192.0.0.1", "192.0.0.10", "192.0.2.1", "192.88.99.1",
    "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
    "::1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "64:ff9b:1::808:808",
    "64:ff9b:1:a00:0:100::", "64:ff9b:1:a:0:1::", "64:ff9b:1::a:0:100:0",
    "2001:0:4136:e378:8000:63bf:f5ff:fffe", "2001:db8::1", "2001:10::1", "2001:2::1",
    "2002:7f00:1::1", "2002:a00:1::1", "2002:808:808::1", "3fff::1", "::8.8.8.8", "::7f00:1",
    "fc00::1", "fd12:3456::1", "fec0::1", "100::1", "4000::1", "5f00::1",
]  # fmt: skip

NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.170.2", "169.254.0.1", "168.63.129.16",
    "100.100.100.200", "192.0.0.192", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255", "::", "fe80::1", "fd00:ec2::254", "fd20:ce::254", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:a9fe:a9fe", "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1", "::a9fe:a9fe", "2001:0:a9fe:a9fe::1", "64:ff9b::a83f:8110",
    "fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:100::100:200",
    "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:7::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1:7:a9:fea9:fe00::",
]  # fmt: skip


@pytest.mark.parametrize("host", PUBLIC)
def test_a_public_name_is_allowed_by_a_star(host: str) -> None:
    assert guard().resolve(host, 443)


def test_addresses_come_checked_and_in_the_resolvers_order() -> None:
    assert guard().resolve("hooks.example.com", 443) == [
        Address(socket.AF_INET, "93.184.216.34", 443),
        Address(socket.AF_INET6, "2606:2800:220:1::1", 443),
    ]


@pytest.mark.parametrize("host", STRANGE_SPELLINGS)
@pytest.mark.parametrize("trusted", [False, True])
def test_what_programs_may_read_in_two_ways_is_no_host(host: str, trusted: bool) -> None:
    with pytest.raises(Blocked, match=r"host|address"):
        guard(networks=["0.0.0.0/0", "::/0"], trusted=trusted).resolve(host, 80)


@pytest.mark.parametrize("address", [*INNER, *NEVER])
def test_a_name_of_an_inner_address_is_refused(address: str) -> None:
    inner = Egress(["*.example.com"], [], False, lambda host, port: [address])
    with pytest.raises(Blocked, match=r"a\.example\.com has the address .*, which is"):
        inner.resolve("a.example.com", 80)


@pytest.mark.parametrize("address", [*INNER, *NEVER, "8.8.8.8", "2606:4700::1111"])
def test_a_star_covers_no_address(address: str) -> None:
    with pytest.raises(Blocked, match="allowedNetworks"):
        guard().resolve(address, 80)


@pytest.mark.parametrize("address", INNER)
def test_an_inner_address_is_allowed_by_its_network(address: str) -> None:
    everything = Egress(["*"], ["0.0.0.0/0", "::/0"], False, lambda host, port: [address])
    assert everything.resolve("a.example.com", 80)
    assert everything.resolve(address, 80)


@pytest.mark.parametrize("address", NEVER)
def test_no_network_allows_metadata_and_its_like(address: str) -> None:
    everything = Egress(["*", address], ["0.0.0.0/0", "::/0"], False, lambda h, p: [address])
    with pytest.raises(Blocked, match="never allowed"):
        everything.resolve("a.example.com", 80)
    with pytest.raises(Blocked, match="never allowed"):
        everything.resolve(address, 80)


@pytest.mark.parametrize("address", ["8.8.8.8", "10.1.2.3", "127.0.0.1", "::1", "2606:4700::1111"])
def test_an_address_is_allowed_by_an_entry_of_its_own(address: str) -> None:
    assert guard([address]).resolve(address, 80)
    assert guard([address]).resolve(f"[{address}]" if ":" in address else address, 80)


def test_an_address_that_is_an_allowed_host_allows_no_name_of_it() -> None:
    with pytest.raises(Blocked, match="allowedNetworks"):
        guard(["127.0.0.1", "evil.example.com"]).resolve("evil.example.com", 80)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.", "billing", "billing.shop.svc", "billing.shop.svc.cluster.local.",
     "metadata.google.internal", "outside.internal", "a.local", "a.localhost"],
)  # fmt: skip
def test_a_star_covers_no_name_of_an_inner_network(host: str) -> None:
    with pytest.raises(Blocked, match="must itself be in allowedHosts"):
        guard(networks=["0.0.0.0/0", "::/0"]).resolve(host, 80)


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("billing.shop.svc", "billing.shop.svc"),
        ("*.svc.cluster.local", "billing.shop.svc.cluster.local"),
        ("Billing", "billing"),
        ("localhost", "localhost."),
    ],
)
def test_an_inner_name_needs_an_entry_and_a_network(entry: str, host: str) -> None:
    inside = ["10.96.0.0/16", "127.0.0.0/8", "::1/128"]
    assert guard([entry], inside).resolve(host, 80)
    with pytest.raises(Blocked, match="allowedNetworks"):
        guard([entry]).resolve(host, 80)


@pytest.mark.parametrize(
    ("hosts", "host", "trusted", "asked"),
    [
        (["*"], "kubernetes.default", False, "kubernetes.default."),
        (["*", "kubernetes.default:443"], "kubernetes.default", False, "kubernetes.default."),
        (["*"], "hooks.example.com", False, "hooks.example.com."),
        (["*.example.com"], "hooks.example.com.", False, "hooks.example.com."),
        (["kubernetes.default"], "kubernetes.default", False, "kubernetes.default"),
        (["*.shop.svc"], "billing.shop.svc", False, "billing.shop.svc"),
        (["billing:80"], "billing", False, "billing"),
        ([], "kubernetes.default", True, "kubernetes.default"),
    ],
)
def test_the_search_list_is_for_what_the_resource_names_itself(
    hosts: Sequence[str], host: str, trusted: bool, asked: str
) -> None:
    names: list[str] = []

    def note(name: str, port: int) -> Sequence[str]:
        names.append(name)
        return ["10.96.0.1"]

    Egress(hosts, ["10.0.0.0/8"], trusted, note).resolve(host, 80)
    assert names == [asked]


def test_metadata_by_name_is_refused_even_if_the_name_is_listed() -> None:
    with pytest.raises(Blocked, match="never allowed"):
        guard(["metadata.google.internal"], ["0.0.0.0/0"]).resolve("metadata.google.internal", 80)


@pytest.mark.parametrize("host", ["both.example.com", "last.example.com"])
def test_one_inner_address_refuses_all_of_a_name(host: str) -> None:
    with pytest.raises(Blocked, match=r"10\.0\.0\.5, which is not public \(private\)"):
        guard().resolve(host, 80)
    assert len(guard(networks=["10.0.0.0/8"]).resolve(host, 80)) == 2


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        (["hooks.example.com"], "hooks.example.com", True),
        (["hooks.example.com"], "example.com", False),
        (["*.example.com"], "hooks.example.com", True),
        (["*.example.com"], "example.com", False),
        (["*.EXAMPLE.com."], "hooks.example.com", True),
        (["*.ample.com"], "hooks.example.com", False),
        (["example.com"], "hooks.example.com", False),
        (["hooks.example.com:443"], "hooks.example.com", True),
        (["hooks.example.com:8443"], "hooks.example.com", False),
        ([], "hooks.example.com", False),
    ],
)
def test_a_host_must_be_listed(hosts: Sequence[str], host: str, allowed: bool) -> None:
    if allowed:
        assert guard(hosts).resolve(host, 443)
    else:
        with pytest.raises(Blocked, match=rf"{host}:443 is not an allowed host; list it"):
            guard(hosts).resolve(host, 443)


@pytest.mark.parametrize("entry", ["", "*.", "*.10.0.0.1", "a b", "**", "a.*.com", "127.1", "x:y"])
def test_an_entry_that_is_no_host_is_a_mistake(entry: str) -> None:
    with pytest.raises(ValueError, match=r"host|address"):
        guard([entry])


def test_a_port_of_an_address_may_be_listed() -> None:
    listed = guard(["[::1]:8080", "127.0.0.1:8080"])
    assert listed.resolve("::1", 8080)
    assert listed.resolve("127.0.0.1", 8080)
    with pytest.raises(Blocked):
        listed.resolve("::1", 22)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_there_are_65535_ports(port: int) -> None:
    with pytest.raises(Blocked, match="no port"):
        guard().resolve("hooks.example.com", port)


@pytest.mark.parametrize(
    "host", ["zone.example.com", "metadata.example.com", "mapped.example.com", "evil.example.com"]
)
def test_a_host_that_the_resource_fixes_is_taken_as_it_is(host: str) -> None:
    assert [a.ip for a in guard([], trusted=True).resolve(host, 80)] == NAMES[host]
    with pytest.raises(Blocked):
        guard().resolve(host, 80)


def test_a_name_without_addresses_is_refused() -> None:
    with pytest.raises(Blocked, match="has no address"):
        guard().resolve("none.example.com", 80)


def test_a_resolver_that_fails_is_an_outage_and_no_refusal() -> None:
    def fails(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    with pytest.raises(OSError, match="later"):
        Egress(["*"], [], False, fails).resolve("hooks.example.com", 80)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://Example.COM", ("https", "example.com", 443, "/")),
        ("http://example.com.:8080/a?b=c#d", ("http", "example.com", 8080, "/a?b=c")),
        ("HTTPS://[2606:4700::1]/x", ("https", "2606:4700::1", 443, "/x")),
        ("http://93.184.216.34?x", ("http", "93.184.216.34", 80, "/?x")),
    ],
)
def test_a_url_is_taken_apart(url: str, parts: tuple[str, str, int, str]) -> None:
    assert parse_url(url) == parts


@pytest.mark.parametrize(
    "url",
    ["ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "example.com", "",
     "//example.com/", "http:///x", "http://", "https:example.com", "http://:80/",
     "http://user@example.com/", "http://user:pw@example.com/", "http://@example.com/",
     "http://example.com\\@evil.com/", "http://exa\tmple.com/", "http://example.com/\r\nX: y",
     " http://example.com/", "http://example.com /", "http://example.com:0/",
     "http://example.com:99999/", "http://example.com:8o/", "http://example.com:/",
     "http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://[::1%25lo]/", "http://[::1/",
     "http://１２７.0.0.1/", "http://example.com/ü", "http://%31.com/", "http://[v1.x]/",
     "http://[127.0.0.1]/", "http://evil.com[::1]/", "http://[::1]evil.com/",
     "http://[::1]evil.com:80/", "http://[::1][::2]/"],
)  # fmt: skip
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(Blocked):
        parse_url(url)
