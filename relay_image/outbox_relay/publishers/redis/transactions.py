"""
A batch as transactions, and what their answers mean.

Each transaction is for one stream, so that Redis takes all of its entries or none. A stream with
many entries has several, one after the other: the next is sent when the one before it is known to
have worked. Those of different streams go out together, in rounds.
"""

from collections.abc import Callable, Sequence
from typing import Final

from outbox_core.model.attempt import Acked, Outcome, Refused
from outbox_core.model.event import Claim
from outbox_core.model.ordering import BEHIND, KeyOrder
from outbox_relay.publishers.messages import refused
from outbox_relay.publishers.redis.entries import Entries
from outbox_relay.publishers.redis.errors import ReplyError, error_of
from outbox_relay.publishers.redis.wire import pack

LARGEST_BYTES: Final = 1 << 20
MOST_ENTRIES: Final = 1000
"""Redis does nothing else while it runs a transaction: this many take it two milliseconds."""

MULTI: Final = pack("MULTI")
EXEC: Final = pack("EXEC")


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
        """One for each entry, from the answers to each of the commands."""
        queued = [read() for _ in self._commands]
        done = read()
        if isinstance(done, list) and len(done) == len(self.places):
            return [self._outcome(reply) for reply in done]
        # If one was not queued, EXEC says only that; the reason is in the first answer that failed.
        why = next((reply for reply in (*queued, done) if isinstance(reply, ReplyError)), None)
        if why is None:
            why = ReplyError("ERR the transaction was not executed")
        return [Refused(error_of(why))] * len(self.places)

    def _outcome(self, reply: object) -> Outcome:
        if isinstance(reply, bytes):
            return Acked(f"{self.stream}@{reply.decode()}")
        why = reply if isinstance(reply, ReplyError) else ReplyError("ERR no entry was made")
        return Refused(error_of(why))


def plan(
    batch: Sequence[Claim],
    entries: Entries,
    largest: int,
    in_order: bool,
    outcomes: list[Outcome | None],
) -> list[list[Transaction]]:
    """
    In rounds. Events that cannot be sent have their outcome already: refused, or in order behind
    one that was.
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
