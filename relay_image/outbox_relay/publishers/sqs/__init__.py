"""Amazon SQS, or a server that speaks its protocol. `registry` calls these two functions."""

from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.publishers.sqs.endpoint import endpoint_of
from outbox_relay.publishers.sqs.messages import queue_template
from outbox_relay.publishers.sqs.publisher import SqsPublisher


def make(settings: SqsSettings, in_order: bool) -> Publisher:
    return SqsPublisher(settings)  # in order or not, `route` promises nothing


def validate(settings: SqsSettings) -> None:
    queue_template(settings)
    endpoint_of(settings)
