"""
The room that the node lives in: a network and a mount namespace, and one wire to the host.

Inside, the folders that Kubernetes, containerd and CNI are known to write to are the instance's
own, and the kernel settings that kubelet insists on are plain files. So the host keeps its
mounts, folders, firewall and settings, and removing the room removes all of that at once.

Called by `builtin_node`. Namespaces are held by files, not by a process that could die.
"""

import json
import os
import subprocess
from pathlib import Path

from ..errors import FULL, ClusterError, tells_of_a_full_disk
from ..instance import Instance

PRIVATE = ("/run", "/var/lib", "/var/log", "/opt")

KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What kubelet sets on the whole machine, and finds set here without anything being changed."""

FURNISH = """
bind() { mkdir -p "$2"; mount --bind "$1" "$2"; }
bind "$folder" "$folder/private$folder"      # before the next line hides it
for place in $places; do mkdir -p "$folder/private$place"; done
for place in $places; do mount --rbind "$folder/private$place" "$place"; done
for file in $(cd "$folder/sys" && find . -type f); do
    mount --bind "$folder/sys/$file" "/proc/sys/$file"
done
mount --make-rshared /                       # as on a real node: pods may ask to see later mounts
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
"""


class Namespaces:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.folder = instance.folder / "ns"
        self.net = self.folder / "net"
        self.mnt = self.folder / "mnt"

    @property
    def enter(self) -> list[str]:
        """The words in front of a command. Not `ip netns exec`: it remounts /sys and so hides
        the cgroups."""
        return ["nsenter", f"--net={self.net}", f"--mount={self.mnt}", "--"]

    def create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, value in KERNEL_SETTINGS.items():
            if Path("/proc/sys", name).exists():
                path = self.instance.folder / "sys" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{value}\n")
        # A mount namespace can only be held by a mount that is private.
        run("mount", "--bind", str(self.folder), str(self.folder))
        run("mount", "--make-private", str(self.folder))
        self.net.touch()
        self.mnt.touch()
        run(
            *("unshare", f"--net={self.net}", f"--mount={self.mnt}", "--propagation", "private"),
            *("sh", "-euc", FURNISH),
            folder=str(self.instance.folder),
            places=" ".join(PRIVATE),
        )
        self._wire()

    def _wire(self) -> None:
        """
        Host to node by a pair of virtual links, and one route to everything behind it.

        No default route inside: nothing can leave. Services have no link of their own; their
        addresses are translated on the way out, and one that nobody serves dies on the wire.
        """
        mine, link = self.instance, self.instance.link
        inside = ["nsenter", f"--net={self.net}", "ip"]
        run(
            "ip",
            "link",
            "add",
            link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(self.net),
        )
        run("ip", "address", "add", f"{mine.host_address}/30", "dev", link)
        run("ip", "link", "set", link, "up")
        run(*inside, "address", "add", f"{mine.address}/30", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "route", "add", str(mine.services), "dev", "eth0")
        run("ip", "route", "add", str(mine.range), "via", str(mine.address), "dev", link)

    @property
    def intact(self) -> bool:
        return {str(self.net), str(self.mnt)} <= mounts_below(self.folder) and any(
            destination == str(self.instance.range) for destination, _ in self._routes()
        )

    def remove(self) -> None:
        if self.instance.link in links():  # takes its other end and its route along
            run("ip", "link", "delete", self.instance.link)
        for mount in sorted(mounts_below(self.folder), reverse=True):
            run("umount", mount)

    def leftovers(self) -> list[str]:
        """What should be gone and is not."""
        found = [f"mount {mount}" for mount in sorted(mounts_below(self.instance.folder))]
        found += [f"link {link}" for link in links() if link == self.instance.link]
        return found + [f"route {destination}" for destination, _ in self._routes()]

    def _routes(self) -> list[tuple[str, str]]:
        return [route for route in routes() if route[1] == self.instance.link]


def links() -> list[str]:
    return [link["ifname"] for link in json.loads(run("ip", "-json", "link"))]


def routes() -> list[tuple[str, str]]:
    """Destination and link; what has no link, as a blackhole, shows its type."""
    shown = json.loads(run("ip", "-json", "-4", "route") or "[]")
    return [(route["dst"], route.get("dev") or route.get("type", "?")) for route in shown]


def mounts_below(folder: Path) -> set[str]:
    """The folder itself included."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    points = {line.split()[4] for line in mounts}
    return {point for point in points if Path(point) == folder or folder in Path(point).parents}


def run(*command: str, **environ: str) -> str:
    """A short command that has to work; returns its output."""
    environment = {**os.environ, **environ}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is not installed", "run dev/setup cluster") from error
    if done.returncode != 0:
        cure = FULL if tells_of_a_full_disk(done.stderr) else ""
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}", cure)
    return done.stdout
