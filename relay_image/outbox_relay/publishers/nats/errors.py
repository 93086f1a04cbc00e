"""Whose fault a refusal of NATS is: the event's, a stream's, the server's, or not known."""

from typing import Final, NamedTuple

from outbox_core.model.attempt import Error, ErrorClass

OF_THE_EVENT: Final = frozenset(
    (
        10054,  # larger than the stream's max_msg_size
        10097,  # headers of more than 64 kB
    )
)
"""Only what is certainly the event's own fault: it is DEAD at once."""

OF_THE_STREAM: Final = frozenset(
    (
        10077,  # full (discard: new), also of one subject only
        10118,  # offline
        10158,  # a copy sent before is not stored yet, as long as the replicas have no majority
        10194,  # offline, with a reason
        10167,  # too many requests
    )
)
"""It takes nothing now; others do. So its events are parked, and it costs them no attempts."""

OF_THE_SERVER: Final = frozenset(
    (
        10002,  # the account's resources are used up
        10008,  # no leader of JetStream
        10009,
        10023,  # the server's resources are used up
        10028,
        10039,  # not enabled for the account
        10047,
        10076,  # not enabled
    )
)

ATOMIC_DISABLED: Final = 10174
DUPLICATE_IN_BATCH: Final = 10201
NO_RESPONDERS: Final = 503
DENIED: Final = 403
"""Ours, for a violation of permissions, which the server does not report as an answer."""


class Problem(NamedTuple):
    """An answer of the server's that is not an acknowledgement."""

    code: int
    text: str


def error_of(problem: Problem) -> Error:
    return Error.of(kind_of(problem.code), f"NATS_{problem.code}", problem.text)


def kind_of(code: int) -> ErrorClass:
    if code in OF_THE_EVENT:
        return ErrorClass.EVENT
    if code in OF_THE_STREAM:
        return ErrorClass.DESTINATION
    if code in OF_THE_SERVER:
        return ErrorClass.OUTAGE
    # Rights, a sealed stream, another stream than expected, or a code that we do not know. It is
    # retried, because it may be repaired, but not forever, or a mistake would go unnoticed.
    return ErrorClass.TRANSIENT
