"""
When an image must be built again: its key changes if and only if something that goes in does.

Called by `build`. What is handed in to reach the network (certificates, proxies) is not part of it:
it leaves no trace in an image, and changes whenever a machine is updated.
"""

import hashlib
from collections.abc import Iterable

FORMAT = b"1"
"""To be raised when the way of building changes other than by its inputs."""


def key(files: Iterable[tuple[str, bytes, bool]], *settings: str) -> str:
    """Of the files of the context, the base, the version, and where packages come from."""
    whole = hashlib.sha256(FORMAT)
    for setting in settings:
        whole.update(_framed(setting.encode()))
    for name, content, executable in files:
        whole.update(_framed(name.encode()) + _framed(content) + (b"x" if executable else b"-"))
    return whole.hexdigest()[:16]


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part  # otherwise "ab" + "c" would equal "a" + "bc"
