"""Whose fault a mail server's refusal is: the event's, the server's, or not known (TRANSIENT)."""

from enum import Enum
from typing import Final

from outbox_core.model.attempt import Error, ErrorClass, Refused


class Stage(Enum):
    MAIL = "MAIL"
    RCPT = "RCPT"
    DATA = "DATA"


NO_REPLY: Final = -1
"""smtplib's code for a line that is not a reply."""
GOING_AWAY: Final = frozenset((421, NO_REPLY))
"""The server ends the connection, whatever was asked."""
LETS_NOBODY_IN: Final = frozenset((530, 534, 535, 538))
"""A login is missing or wrong: a person must correct it, and no event is at fault."""
TOO_LARGE: Final = 552


def refusal(stage: Stage, code: int, text: str, of_event: bool = True) -> Refused:
    """`of_event`: what was refused came from the event, and not from the relay's settings."""
    return Refused(
        Error.of(kind_of(stage, code, of_event), f"SMTP_{code}", f"{stage.value}: {code} {text}")
    )


def kind_of(stage: Stage, code: int, of_event: bool) -> ErrorClass:
    if code in GOING_AWAY or code in LETS_NOBODY_IN:
        return ErrorClass.OUTAGE
    if code < 500:
        return ErrorClass.TRANSIENT
    if stage is Stage.RCPT and code == TOO_LARGE:
        return ErrorClass.TRANSIENT  # "too many recipients" of old servers, or a full mailbox
    if stage is Stage.MAIL and code != TOO_LARGE and not of_event:
        return ErrorClass.TRANSIENT  # the relay's own sender: a person may correct it
    return ErrorClass.EVENT
