"""
One built-in node's names and addresses, all derived from its name and its range.

Two instances share nothing on the machine: neither folder, namespaces, link, cgroup nor
addresses. Pure; everybody in this package may ask.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from .errors import ClusterError

STATE = Path("/var/lib/outbox-cluster")
"""One place per machine, not per user or clone: addresses and links are the machine's, too.
And on a disk: overlay file systems do not go on top of memory or of another overlay."""

MAIN = "main"
NODE = "node"
"""The node's name in Kubernetes."""


@dataclass(frozen=True)
class Instance:
    name: str
    range: IPv4Network
    """Everything the node uses, so that one comparison shows whether it is free:
    the link to the host, the pods, the services."""

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def link(self) -> str:
        """The host's end of the wire; 15 characters at most."""
        return f"ob-{self.name}"

    @property
    def cgroup(self) -> str:
        return f"outbox-{self.name}"

    @property
    def host_address(self) -> IPv4Address:
        """Where pods find what listens on the host."""
        return self.range[1]

    @property
    def address(self) -> IPv4Address:
        """The node's, for pods and host alike: API server, kubelet, DNS."""
        return self.range[2]

    @property
    def pods(self) -> IPv4Network:
        return list(self.range.subnets(new_prefix=18))[1]

    @property
    def services(self) -> IPv4Network:
        return list(self.range.subnets(new_prefix=18))[2]

    @property
    def server(self) -> str:
        return f"https://{self.address}:6443"


def from_environment(environ: Mapping[str, str]) -> Instance:
    name = environ.get("OUTBOX_CLUSTER_INSTANCE") or MAIN
    if not re.fullmatch(r"[a-z][a-z0-9]{0,11}", name):
        raise ClusterError(
            f"OUTBOX_CLUSTER_INSTANCE is {name!r}",
            "choose up to 12 small letters and digits: it becomes part of a link's name",
        )
    asked = environ.get("OUTBOX_CLUSTER_RANGE") or default_range(name)
    try:
        chosen = IPv4Network(asked)
    except ValueError as error:
        raise ClusterError(f"OUTBOX_CLUSTER_RANGE: {error}", "for example 10.99.0.0/16") from error
    if chosen.prefixlen != 16:
        raise ClusterError(
            f"OUTBOX_CLUSTER_RANGE is {asked}, not a /16", "for example 10.99.0.0/16"
        )
    return Instance(name, chosen)


def default_range(name: str) -> str:
    """10.87 for the main one; others get one of the next 32, the same at every start."""
    return f"10.{87 if name == MAIN else 88 + zlib.crc32(name.encode()) % 32}.0.0/16"
