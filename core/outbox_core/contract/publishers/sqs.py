"""Amazon SQS, or a server that speaks its protocol."""

from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from outbox_core.contract.publishers.common import Format, FormattedKind
from outbox_core.contract.values import SecretRef

NO_LOGIN_IN_URL: Final = (
    "queueUrl must not contain a user name or a password: keys have fields of their own"
)
LARGEST_MESSAGE_BYTES = 1_048_576
"""Of SQS itself, for a message and for a request of several."""


class SqsBase(FormattedKind):
    why_unordered: ClassVar[str] = (
        "a standard queue keeps no order; use a FIFO queue, whose queueUrl ends in .fifo"
    )

    queue_url: Annotated[str, Field(min_length=1, max_length=1000)]
    """A template that may use {event_type}, {aggregate_type} and {tenant_id}, but not in the host:
    `https://sqs.eu-west-1.amazonaws.com/123456789012/{event_type}`. In a field's value, "." becomes
    "-", because queues have no dots in their names. If it ends in `.fifo`, the queues are FIFO
    queues: MessageGroupId is the event's ordering_key, otherwise its id, and MessageDeduplicationId
    is the event's id."""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,50}$")] | None = None
    """The region that requests are signed for. Default: the one in queueUrl's host, otherwise that
    of the environment (AWS_REGION)."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$")] | None = None
    """Where requests go, for example a VPC endpoint, or a server that speaks the same protocol.
    Default: the host of queueUrl."""
    format: Format = "Raw"
    """Raw: the payload, the application's headers and outbox-* headers as message attributes.
    CloudEvents: the same, but the event's fields are ce-* attributes (binary mode). Debezium: the
    payload, and one attribute, `id`. A message has 10 attributes at most: headers that do not fit,
    or cannot be an attribute, are together in one attribute `outbox-headers`, as JSON."""
    max_message_bytes: Annotated[int, Field(ge=1000, le=LARGEST_MESSAGE_BYTES)] = (
        LARGEST_MESSAGE_BYTES
    )
    """Larger messages are refused before they are sent; a request of several is no larger. The size
    is that of the body and of the attributes with their names and types. Set it to the queues'
    MaximumMessageSize at most."""
    concurrency: Annotated[int, Field(ge=1, le=100)] = 16
    """How many requests of a relay's process wait for their answers at a time. Each has 10 events
    at most."""

    @model_validator(mode="after")
    def login_is_elsewhere(self) -> Self:
        if "@" in self.queue_url:
            raise ValueError(NO_LOGIN_IN_URL)
        return self

    @property
    def holds_order(self) -> bool:
        return self.queue_url.endswith(".fifo")


class SqsSettings(SqsBase):
    access_key_id: SecretRef | None = None
    """With secretAccessKey. Default: what the environment offers, by the usual rules of AWS: the
    pod's identity, environment variables, the node's role."""
    secret_access_key: SecretRef | None = None
    """Read again when the server does not accept it, so that a changed one needs no restart."""
    ca_file: Path | None = None
    """The CA that signed the endpoint's certificate. Default: the system's."""

    @model_validator(mode="after")
    def keys_go_together(self) -> "SqsSettings":
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("accessKeyId and secretAccessKey go together: add the other one")
        return self
