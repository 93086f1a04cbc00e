"""
A batch as transactions, and what their answers mean.

Each transaction is for one stream, so that Redis takes all of its entries or none. A stream with
many entries has several, one after the other: the next is sent when the one before it is known to
have worked. Those of different streams go out together, in rounds.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from outbox_core.model.attempt import Acked, Outcome, Refused
from outbox_core.model.event import Claim
from outbox_core.model.ordering import BEHIND, KeyOrder
from outbox_relay.publishers.messages import refused
from outbox_relay.publishers.redis.entries import Entries
from outbox_relay.publishers.redis.errors import ReplyError, error_of
from outbox_relay.publishers.redis.wire import Broken, pack

LARGEST_BYTES: Final = 1 << 20
MOST_ENTRIES: Final = 1000
"""Redis does nothing else while it runs a transaction: this many take it two milliseconds."""

MULTI: Final = pack("MULTI")
EXEC: Final = pack("EXEC")
ENTRY_ID: Final = re.compile(rb"[0-9]+-[0-9]+")
NOT_READ: Final = "ERR Protocol error: invalid bulk length"
TOO_LONG: Final = refused(
    "TOO_LARGE", "the server does not accept a value of that length: see its proto-max-bulk-len"
)


class TooLong(Broken):
    """The server closed the connection because an entry is too long for it. No server's limit is
    below LARGEST_BYTES, so the entry is alone in its transaction."""

    def __init__(self, transaction: "Transaction") -> None:
        super().__init__(
            "CONNECTION_LOST", "Redis closed the connection because of an entry that is too long"
        )
        self.transaction = transaction


class Transaction:
    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.places: list[int] = []
        """Of its events in the batch."""
        self._commands: list[bytes] = [MULTI]
        self._size = 0

    def has_room(self, command: bytes) -> bool:
        return len(self.places) < MOST_ENTRIES and self._size + len(command) <= LARGEST_BYTES

    def add(self, place: int, command: bytes) -> None:
        self.places.append(place)
        self._commands.append(command)
        self._size += len(command)

    def message(self) -> bytes:
        return b"".join((*self._commands, EXEC))

    def outcomes(self, read: Callable[[], object]) -> list[Outcome]:
        """
        One for each entry, from the answers to all commands. Broken if Redis cannot have answered
        so to these commands: then the answers belong to others, and ours are still to come.
        """
        begun = read()
        queued = [read() for _ in self.places]
        is_not_read = isinstance(queued[0], ReplyError) and queued[0].text == NOT_READ
        if is_not_read and self._size > LARGEST_BYTES:
            raise TooLong(self)
        done = read()
        if isinstance(done, ReplyError) and _fit(begun, queued):
            # If one was not queued, EXEC reports only that; the reason is in the first that failed.
            answers = (begun, *queued, done)
            why = next(reply for reply in answers if isinstance(reply, ReplyError))
            return [Refused(error_of(why))] * len(self.places)
        count = len(self.places)
        if begun == b"OK" and queued == [b"QUEUED"] * count and isinstance(done, list):
            found = [outcome for reply in done if (outcome := self._outcome(reply)) is not None]
            if len(done) == len(found) == count:
                return found
        raise Broken.out_of_step()

    def _outcome(self, reply: object) -> Outcome | None:
        if isinstance(reply, bytes) and ENTRY_ID.fullmatch(reply):
            return Acked(f"{self.stream}@{reply.decode()}")
        return Refused(error_of(reply)) if isinstance(reply, ReplyError) else None


def _fit(begun: object, queued: Sequence[object]) -> bool:
    """Whether these may stand before an EXEC that failed."""
    if isinstance(begun, ReplyError):
        return True  # without a transaction, each of the others was carried out alone
    return begun == b"OK" and all(q == b"QUEUED" or isinstance(q, ReplyError) for q in queued)


def rounds_of(
    batch: Sequence[Claim],
    entries: Entries,
    largest: int,
    in_order: bool,
    outcomes: list[Outcome | None],
) -> list[list[Transaction]]:
    """
    The transactions of a batch, in rounds. Events that cannot be sent get their outcome here:
    refused, or, in order, behind one that was.
    """
    rounds: list[list[Transaction]] = []
    latest: dict[str, Transaction] = {}
    depth: dict[str, int] = {}
    stream_of, command_of = entries
    order = KeyOrder(in_order)
    failed_keys = order.failed_keys
    for place, claim in enumerate(batch):
        if failed_keys and order.blocks(claim):
            outcomes[place] = BEHIND
            continue
        stream = stream_of(claim)
        if not isinstance(stream, str):
            outcomes[place] = stream
            order.fail(claim)
            continue
        command = command_of(stream, claim)
        if len(command) > largest:
            text = f"an entry of {len(command)} bytes; maxMessageBytes is {largest}"
            outcomes[place] = refused("TOO_LARGE", text)
            order.fail(claim)
            continue
        transaction = latest.get(stream)
        if transaction is None or not transaction.has_room(command):
            at = depth[stream] = depth.get(stream, -1) + 1
            if at == len(rounds):
                rounds.append([])
            transaction = latest[stream] = Transaction(stream)
            rounds[at].append(transaction)
        transaction.add(place, command)
    return rounds
