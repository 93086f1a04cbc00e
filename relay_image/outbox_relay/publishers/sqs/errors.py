"""
Whose fault an error of SQS is: the event's, nobody's for long, a queue's, or the service's.

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
"""Others may well take events."""

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
"""It answers, and our keys, our clock or a certificate is not right."""

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
"""If the answer does not say for how long: the limits are per second."""

OF_THE_EVENT: Final = frozenset(
    ("BatchRequestTooLong", "InvalidMessageContents", "MessageTooLong", "HTTP_413")
)
"""Of the answers to a whole request, what is surely the event's own if it was alone in it."""


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
        # A parameter, and what we have never heard of: it may be repaired, but not forever, or a
        # mistake would never be seen.
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
    """Of a BatchResultErrorEntry. The code first: for SQS, also a key that it may not use is its
    sender's fault."""
    code = plain(str(failed.get("Code") or "UNKNOWN"))
    text = str(failed.get("Message") or code)
    if code in OF_THE_QUEUE or code in ASKS_FOR_PATIENCE or code in LETS_NOBODY_IN:
        return RequestFailed(code, text).refused()
    # Nothing but true: some servers write "false", and by that no event dies.
    kind = ErrorClass.EVENT if failed.get("SenderFault") is True else ErrorClass.TRANSIENT
    return Refused(Error.of(kind, code, text))


def plain(code: str) -> str:
    name = code.rpartition("#")[2].partition(":")[0].rpartition(".")[2]
    return name.removesuffix("Exception") or name
