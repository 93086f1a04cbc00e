"""What can be known about the queues without publishing: for `probe` and `outbox-relay check`."""

import time
from collections.abc import Iterator, Mapping, Sequence

from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.errors import BrokerRefused, PublisherError
from outbox_core.model.attempt import ErrorClass, without_secrets
from outbox_relay.publishers.messages import TEMPLATE_FIELDS
from outbox_relay.publishers.protocol import CheckResult
from outbox_relay.publishers.sqs.connection import Connections
from outbox_relay.publishers.sqs.endpoint import region_of
from outbox_relay.publishers.sqs.errors import RequestFailed
from outbox_relay.publishers.sqs.messages import queue_template

REQUEST_SECONDS = 5.0
"""Or less, if deliveryTimeout is shorter."""
ABSENT = ("QueueDoesNotExist", "NonExistentQueue", "InvalidAddress")


def probe_sqs(settings: SqsSettings, connections: Connections) -> None:
    """Asks about any queue: that it does not exist, or that we may not ask, is an answer too."""
    queue = queue_template(settings).fill(dict.fromkeys(TEMPLATE_FIELDS, "outbox-probe"))
    try:
        attributes_of(settings, connections, str(queue))
    except RequestFailed as error:
        if error.lets_nobody_in:
            text = f"SQS at {connections.endpoint} does not let us in: {error}"
            raise BrokerRefused(without_secrets(text)) from None
        if error.kind is ErrorClass.OUTAGE:
            text = f"SQS at {connections.endpoint} does not answer: {error}"
            raise PublisherError(without_secrets(text)) from None


def check_sqs(
    settings: SqsSettings, connections: Connections, queues: Sequence[str]
) -> list[CheckResult]:
    try:
        probe_sqs(settings, connections)
    except PublisherError as error:
        return [CheckResult("fail", str(error))]
    region = region_of(settings)
    findings = [CheckResult("ok", f"SQS at {connections.endpoint} answers (region {region})")]
    for queue in queues:
        findings += about(settings, connections, queue)
    return findings


def about(settings: SqsSettings, connections: Connections, queue: str) -> Iterator[CheckResult]:
    name = queue.rpartition("/")[2]
    try:
        found = attributes_of(settings, connections, queue)
    except RequestFailed as error:
        if error.code in ABSENT:
            yield CheckResult("fail", f"queue {name} does not exist", f"create {queue}")
        elif error.code == "AccessDenied":
            text = f"queue {name}: its settings cannot be read, and whether it exists is unknown"
            yield CheckResult("warn", text, "allow sqs:GetQueueAttributes, and sqs:SendMessage")
        else:
            yield CheckResult("fail", f"queue {name}: {without_secrets(str(error))}")
        return
    yield CheckResult("ok", f"queue {name}: {', '.join(described(found))}")
    limit = _number(found.get("MaximumMessageSize"))
    if limit is not None and limit < settings.max_message_bytes:
        yield CheckResult(
            "warn",
            f"queue {name}: MaximumMessageSize is {limit}, below the relay's maxMessageBytes "
            f"({settings.max_message_bytes}): larger events are sent only to be refused",
            "lower maxMessageBytes, or raise MaximumMessageSize",
        )
    if found.get("VisibilityTimeout") == "0":
        yield CheckResult(
            "warn",
            f"queue {name}: VisibilityTimeout is 0: every consumer gets every message again and "
            "again until one deletes it",
        )


def described(found: Mapping[str, str]) -> Iterator[str]:
    if found.get("FifoQueue") == "true":
        quick = found.get("FifoThroughputLimit") == "perMessageGroupId"
        yield "FIFO, with high throughput" if quick else "FIFO, limited as a whole queue"
        scope = found.get("DeduplicationScope", "queue")
        yield f"duplicates found per {'group' if scope == 'messageGroup' else 'queue'}"
    else:
        yield "standard"
    if key := found.get("KmsMasterKeyId"):
        yield f"encrypted with {key} (needs kms:GenerateDataKey and kms:Decrypt)"
    if seconds := found.get("VisibilityTimeout"):
        yield f"visible again after {seconds} s"
    if (kept := _number(found.get("MessageRetentionPeriod"))) is not None:
        yield f"kept for {kept / 86400:g} days"


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None


def attributes_of(settings: SqsSettings, connections: Connections, queue: str) -> Mapping[str, str]:
    request = {"QueueUrl": queue, "AttributeNames": ["All"]}
    until = time.monotonic() + min(REQUEST_SECONDS, settings.delivery_timeout.total_seconds())
    answer = connections.ask("GetQueueAttributes", request, until)
    found = answer.get("Attributes", {})
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise RequestFailed("BAD_ANSWER", "the answer is not from SQS", 200)
    return found
