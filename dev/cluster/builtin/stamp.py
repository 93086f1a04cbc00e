"""
What a built-in node was started as, and what that means for the next `up`.

Pure, but for reading and writing the one file. Called by `builtin_node`.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Stamp:
    owner: str
    """The clone that started it."""
    boot: str
    range: str
    programs: str
    """The hash in the name of the binaries' folder."""
    config: str
    """The hash of all command lines and configuration files."""


Way = Literal["fresh", "restart", "heal"]


@dataclass(frozen=True)
class Plan:
    way: Way
    reason: str


def plan(was: Stamp | None, wanted: Stamp, room_intact: bool) -> Plan:
    """
    Fresh: from nothing. Restart: all processes again, cluster state and images kept, as when a
    node is rebooted. Heal: only what died.
    """
    if was is None:
        return Plan("fresh", "there is none yet")
    if was.owner != wanted.owner:
        return Plan("fresh", f"what is there is a dead one of {was.owner or 'unknown origin'}")
    if was.boot != wanted.boot:
        # etcd does not wait for the disk here, so after a power cut its data may be torn.
        return Plan("fresh", "the machine was restarted since")
    if was.range != wanted.range:
        return Plan("fresh", f"it was on another range, {was.range}")
    if was.programs != wanted.programs:
        return Plan("restart", "its programs changed")
    if was.config != wanted.config:
        return Plan("restart", "its configuration changed")
    if not room_intact:
        return Plan("restart", "its namespaces or its link are gone")
    return Plan("heal", "it was started before")


def read(folder: Path) -> Stamp | None:
    try:
        return Stamp(**json.loads((folder / "stamp.json").read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError):  # of a start killed while writing, or of another version
        return Stamp("", "", "", "", "")


def write(folder: Path, stamp: Stamp) -> None:
    partial = folder / "stamp.partial"
    partial.write_text(json.dumps(asdict(stamp), indent=2))
    partial.rename(folder / "stamp.json")
