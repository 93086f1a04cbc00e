"""
Mail: Exim, which writes every message to its spool and then to a mailbox, a file each.

The mailbox is the same in each measurement, because events name it. A message counts when it is in
the mailbox. Exim delivers by processes that nobody waits for: their CPU is not in its figure.
"""

import re
import shutil
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.destinations.base import Arrival, Destination, Inbox, Receiver
from bench.workload import DIGITS, Shape
from dev.services import Exim

MAILBOX = "bench"
NUMBER = re.compile(rb"\r?\n\r?\n(\d{%d})" % DIGITS)


class Mailboxes(Destination):
    shape = Shape(
        before=f'{{"to": "{MAILBOX}@example.test", "subject": "An event", "body_text": "',
        after='"}',
    )
    check_every_seconds = 0.25
    warm_up_events = 100

    def _start(self, folder: Path, stack: ExitStack) -> Exim:
        self._exim = stack.enter_context(Exim(folder / "exim"))
        return self._exim

    def create(self, name: str) -> None:
        self._new = self._exim.make_mailbox(MAILBOX)

    def delete(self, name: str) -> None:
        shutil.rmtree(self._new.parent)

    def size(self, name: str) -> int:
        return sum(1 for _ in self._new.iterdir())

    def read(self, name: str) -> Iterator[Arrival]:
        return iter(messages(self._new))

    def receiver(self, name: str) -> Receiver:
        return partial(receive, self._new, self.size(name))

    def publisher(self, name: str) -> Mapping[str, Any]:
        return {
            "smtp": {
                **{"host": "127.0.0.1", "port": self._exim.port, "startTls": "None"},
                **{"sender": "shop@example.test", "allowedRecipientDomains": ["example.test"]},
            }
        }


def messages(mailbox: Path) -> list[Arrival]:
    found = []
    for file in mailbox.iterdir():
        number = NUMBER.search(file.read_bytes())
        if number is None:
            raise RuntimeError(f"{file} is no message of ours")
        found.append(Arrival(int(number[1]), file.stat().st_mtime))
    return sorted(found, key=lambda arrival: arrival.at)


def receive(mailbox: Path, before: int, first: int, events: int, until_ns: int) -> "array[int]":
    """Looks when all are there: the files have their times."""
    while sum(1 for _ in mailbox.iterdir()) - before < events and time.monotonic_ns() < until_ns:
        time.sleep(0.5)
    return Inbox(first, events).add_stamped(messages(mailbox)).received
