"""
Whose fault a failure is: the event's, a destination's, the broker's, or not known (TRANSIENT).

RabbitMQ answers a message with a confirm, a refusal or a return. For what it does not accept it
closes the channel, and leaves the other messages that were on their way unanswered.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from outbox_core.model.attempt import Error, ErrorClass, Outcome, Refused, Unsent
from outbox_relay.publishers.rabbitmq.connection import ClosedByServer, Lost
from outbox_relay.publishers.rabbitmq.messages import too_large

ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, NOT_ALLOWED = 403, 404, 406, 530

LETS_NOBODY_IN: Final = frozenset((ACCESS_REFUSED, NOT_ALLOWED))
"""Codes by which the server ends a connection while we log in: the password or the vhost."""

NACKED: Final = Refused(
    Error.of(
        # Its queue is full and rejects more, or has lost its majority; others go on.
        ErrorClass.DESTINATION,
        "NACK",
        "a queue did not take it: it is full, or too few of its replicas are there",
    )
)
NOT_STARTED: Final = Unsent("the call ended before its turn came")
ANOTHER_WAS_REFUSED: Final = Unsent("the server refused another event, and closed the channel")

FORBIDDEN_KEY: Final = re.compile(r"access to topic '(.*)", re.DOTALL)
BEHIND_THE_KEY: Final = "' in exchange "
CUT: Final = "..."
"""A short text of AMQP has 255 bytes at most: so RabbitMQ ends a longer one, perhaps within a
character."""
MAX_SIZE: Final = re.compile(r"max size:? ([0-9]+)")
SMALLEST_LIMIT_BYTES: Final = 1000
"""That of `maxMessageBytes`. A server that names a smaller one is faulty: no reason to give up
events."""


class Sent(NamedTuple):
    routing_key: str
    size: int


def unroutable(why: str, exchange: str, key: str) -> Refused:
    """As for an unknown topic of Kafka: retried, because somebody may still bind a queue, but not
    forever, or a mistake would go unnoticed."""
    where = f"exchange {exchange}" if exchange else "the default exchange"
    text = f"{why}: no queue is bound to {where} for the routing key {key!r}"
    return Refused(Error.of(ErrorClass.TRANSIENT, "UNROUTABLE", text))


def outage(lost: Lost) -> Refused:
    return Refused(Error.of(ErrorClass.OUTAGE, lost.code, str(lost)))


def settle(lost: Lost, waiting: Sequence[Sent]) -> list[Outcome]:
    """
    For messages that were sent and have no answer, in the order in which they were sent.

    If the server closed the channel because of one of them, it took none behind that one; those
    before it are in doubt.
    """
    in_doubt = outage(lost)
    refusal = _refusal(lost)
    outcomes: list[Outcome] = []
    is_behind = False
    for sent in waiting:
        if refusal is not None and (refused := refusal(sent)):
            outcomes.append(refused)
            is_behind = True
        else:
            outcomes.append(ANOTHER_WAS_REFUSED if is_behind else in_doubt)
    return outcomes


def largest_taken(lost: Lost) -> int | None:
    """If the channel was closed because a message is too large: the server's limit."""
    if isinstance(lost, ClosedByServer) and lost.why.code == PRECONDITION_FAILED:
        found = MAX_SIZE.search(lost.why.text)
        limit = int(found[1]) if found else 0
        return limit if limit >= SMALLEST_LIMIT_BYTES else None
    return None


def _refusal(lost: Lost) -> Callable[[Sent], Refused | None] | None:
    if not isinstance(lost, ClosedByServer):
        return None
    if (limit := largest_taken(lost)) is not None:
        return lambda sent: too_large(sent.size, limit) if sent.size > limit else None
    if lost.why.code == ACCESS_REFUSED and (topic := FORBIDDEN_KEY.search(lost.why.text)):
        # Rights on a single key: a person may grant them.
        forbidden = Refused(Error.of(ErrorClass.TRANSIENT, lost.code, lost.why.text))
        return lambda sent: forbidden if _begins_with_key(topic[1], sent.routing_key) else None
    return None


def _begins_with_key(text: str, key: str) -> bool:
    """If several keys are so long that they differ only behind the cut, it may be any of them."""
    quoted, is_whole, _ = text.rpartition(BEHIND_THE_KEY)
    if is_whole:
        return key == quoted
    left = text.removesuffix(CUT).rstrip("\ufffd")
    return text.endswith(CUT) and (key + BEHIND_THE_KEY).startswith(left)
