"""
What can be loaded into a cluster: what dev/images builds, and our own two.

Only its shape: most of this tool has to work in a fresh clone, where nothing is built.
"""

from pathlib import Path
from typing import Protocol


class Image(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def archive(self) -> Path:
        """A Docker archive (tar)."""

    @property
    def digest(self) -> str:
        """Changes with the image, and only then: what is loaded already is not loaded again."""
