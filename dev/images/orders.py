"""
What is asked of a builder, and the part of its command line that does not depend on which it is.

`docker` and `buildah` are the builders, chosen by `engines`; `build` gives the orders.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from .cache import Image
from .handed import Handed
from .progress import Report


@dataclass(frozen=True)
class Order:
    """One image to be built."""

    reference: str
    dockerfile: Path
    context: Path
    version: str
    base: str
    handed: Handed
    archive: Path
    log: Path
    afresh: bool = False
    """Take today's packages, not the layers of earlier builds."""


class Engine(Protocol):
    name: str

    def base(self, refresh: bool) -> str:
        """What build stages start from, made if need be; part of the key of every image."""

    def build(self, order: Order, report: Report) -> None:
        """Leave the image in the order's archive."""

    def push(self, image: Image, target: str, log: Path) -> None: ...


@contextmanager
def arguments(order: Order) -> Iterator[list[str]]:
    handed = order.handed
    # A folder that nobody else can read: the address of an index may hold a password.
    with TemporaryDirectory(prefix="outbox-images-") as folder:
        pip_conf = Path(folder) / "pip.conf"
        pip_conf.write_text(handed.pip_conf())
        secrets = {"pip.conf": pip_conf} | ({"ca.crt": handed.ca} if handed.ca else {})
        yield [
            *("--file", str(order.dockerfile), "--tag", order.reference),
            *("--build-arg", f"BASE={order.base}", "--build-arg", f"VERSION={order.version}"),
            *(word for name in handed.proxies for word in ("--build-arg", name)),
            *(word for n, path in secrets.items() for word in ("--secret", f"id={n},src={path}")),
            str(order.context),
        ]
