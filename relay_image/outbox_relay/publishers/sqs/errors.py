"""
Whose fault an error of SQS is: the event's, a queue's, the service's, or not known (TRANSIENT).

Codes are compared without their namespace (`com.amazonaws.sqs#`, `AWS.SimpleQueueService.`, `KMS.`)
and without the ending `Exception`: servers, protocols and the services behind SQS differ in these.
"""

from typing import Any, Final

from outbox_core.model.attempt import Error, ErrorClass, Refused, storable

OF_THE_QUEUE: Final = frozenset(
    (
        "QueueDoesNotExist",
        "NonExistentQueue",
        "QueueDeletedRecently",
        "InvalidAddress",
        "AccessDenied",
        # The key that the queue is encrypted with.
        "KmsAccessDenied",
        "KmsDisabled",
        "KmsInvalidKeyUsage",
        "KmsInvalidState",
        "KmsNotFound",
        "KmsOptInRequired",
        "Disabled",
        "InvalidKeyUsage",
        "KMSInvalidState",
        "NotFound",
        "InvalidState",
    )
)
"""Other queues may still take events."""

LETS_NOBODY_IN: Final = frozenset(
    (
        "NO_CREDENTIALS",
        "TLS_FAILED",
        "AuthFailure",
        "ExpiredToken",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignature",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "UnrecognizedClient",
    )
)
"""The service answers, but our keys, our clock or a certificate is wrong."""

ASKS_FOR_PATIENCE: Final = frozenset(
    (
        "KmsThrottled",
        "OverLimit",
        "RequestLimitExceeded",
        "RequestThrottled",
        "SlowDown",
        "Throttled",
        "Throttling",
        "TooManyRequests",
    )
)
"""Mostly because of one queue: FIFO queues and keys have limits of their own."""
PATIENCE_SECONDS: Final = 1.0
"""If the answer names no time: the limits are per second."""

OF_THE_EVENT: Final = frozenset(
    ("BatchRequestTooLong", "InvalidMessageContents", "MessageTooLong", "HTTP_413")
)
"""Answers to a whole request that are certainly the event's own fault if it was alone in it."""


class RequestFailed(Exception):
    """A request has no answer, or one that is an error."""

    def __init__(self, code: str, text: str, status: int = 0, after: float = 0.0) -> None:
        code, text = storable(code), storable(text)  # also shown where nothing is stored: health
        super().__init__(f"{code}: {text}" if text else code)
        self.code = plain(code)
        self.text = text or code
        self.status = status
        """Of HTTP; 0: there was no answer."""
        self.after = after

    @property
    def kind(self) -> ErrorClass:
        if self.code in OF_THE_EVENT:
            return ErrorClass.EVENT
        if self.code in OF_THE_QUEUE or self.code in ASKS_FOR_PATIENCE:
            return ErrorClass.DESTINATION
        if self.lets_nobody_in or self.code.startswith("HTTP_") or not 400 <= self.status < 500:
            # No answer, 5xx, our keys; or not from SQS at all, such as the page of a proxy.
            return ErrorClass.OUTAGE
        # A parameter, or a code that we do not know. It is retried, because it may be repaired, but
        # not forever, or a mistake would go unnoticed.
        return ErrorClass.TRANSIENT

    @property
    def lets_nobody_in(self) -> bool:
        return self.code in LETS_NOBODY_IN

    @property
    def blames_the_content(self) -> bool:
        """Perhaps of one event only, where the request had several."""
        return self.kind in (ErrorClass.EVENT, ErrorClass.TRANSIENT)

    def refused(self) -> Refused:
        after = self.after
        if self.code in ASKS_FOR_PATIENCE:
            after = after or PATIENCE_SECONDS
        return Refused(Error.of(self.kind, self.code, self.text), after)


def refused_entry(failed: dict[str, Any]) -> Refused:
    """Of a BatchResultErrorEntry. The code comes first: SQS also calls it the sender's fault if it
    may not use the queue's key."""
    code = plain(str(failed.get("Code") or "UNKNOWN"))
    text = str(failed.get("Message") or code)
    if code in OF_THE_QUEUE or code in ASKS_FOR_PATIENCE or code in LETS_NOBODY_IN:
        return RequestFailed(code, text).refused()
    # Only `true` counts: some servers write the text "false", which must not make an event DEAD.
    kind = ErrorClass.EVENT if failed.get("SenderFault") is True else ErrorClass.TRANSIENT
    return Refused(Error.of(kind, code, text))


def plain(code: str) -> str:
    name = code.rpartition("#")[2].partition(":")[0].rpartition(".")[2]
    return name.removesuffix("Exception") or name
