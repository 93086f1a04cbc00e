"""
From a claim to the frames of a persistent, mandatory message. Pure, and hot.

What would make the server close the channel, and with it take the answers to all other events of a
batch, is found here before it is sent.
"""

from collections.abc import Callable
from typing import Final

from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.model.attempt import Refused
from outbox_core.model.event import EPOCH, Claim, Moment
from outbox_relay.publishers.messages import (
    CACHED_NAMES,
    Headers,
    Template,
    headers_for,
    refused,
)
from outbox_relay.publishers.rabbitmq import wire

CLOUD_EVENTS_PREFIX: Final = "cloudEvents:"
"""Of the binding for AMQP."""

EPOCH_UNIX_SECONDS: Final = int(EPOCH.timestamp())

ROUTES_BY: Final = ("CC", "BCC")
"""RabbitMQ reads headers of these names as further routing keys. It expects lists, and closes the
channel if it finds anything else."""


def routing_key_template(settings: RabbitMQSettings) -> Template:
    setting = "rabbitmq.routingKey"
    return Template(settings.routing_key, setting, "routing key", longer_than_a_name)


def longer_than_a_name(name: str) -> str | None:
    if len(name.encode(errors="replace")) > wire.LONGEST_SHORT_STRING_BYTES:
        return f"it may have at most {wire.LONGEST_SHORT_STRING_BYTES} bytes"
    return None


class Encoder:
    def __init__(self, settings: RabbitMQSettings) -> None:
        self.routing_key: Callable[[Claim], str | Refused] = routing_key_template(settings)
        self._headers_of = headers_for(settings, CLOUD_EVENTS_PREFIX)
        self._exchange = settings.exchange
        self.largest = settings.max_message_bytes
        """In bytes; the publisher lowers it when the server reports a smaller limit."""
        self._publish: dict[str, bytes] = {}
        self._names: dict[str, bytes] = {}

    def encode(self, claim: Claim, largest_frame: int) -> bytes | Refused:
        payload = claim.payload
        size = len(payload)
        if size > self.largest:
            return too_large(size, self.largest)
        key = self.routing_key(claim)
        if key.__class__ is not str:
            return key  # type: ignore[return-value]
        try:
            publish = self._publish.get(key) or self._publish_to(key)
            header = self._header(claim, size)
        except ValueError as error:
            return refused("INVALID_MESSAGE", f"it does not fit into an AMQP message: {error}")
        room = largest_frame - wire.FRAME_OVERHEAD
        if len(header) > room:
            text = f"its headers have {len(header)} bytes, and the server takes {room}"
            return refused("HEADERS_TOO_LARGE", text)
        pack, end = wire.FRAME.pack, wire.END
        parts = [publish, pack(wire.HEADER, wire.CHANNEL, len(header)), header, end]
        for start in range(0, size, room):
            piece = payload[start : start + room] if size > room else payload
            parts += (pack(wire.BODY, wire.CHANNEL, len(piece)), piece, end)
        return b"".join(parts)

    def _header(self, claim: Claim, size: int) -> bytes:
        headers = self._headers_of(claim)
        table = self._table(headers)
        flags = wire.HAS_HEADERS | wire.HAS_DELIVERY_MODE | wire.HAS_MESSAGE_ID | wire.HAS_TIMESTAMP
        content_type = correlation_id = event_type = b""
        if (given := _content_type(claim, headers)) and (content_type := _if_short(given)):
            flags |= wire.HAS_CONTENT_TYPE
        if claim.correlation_id and (correlation_id := _if_short(claim.correlation_id)):
            flags |= wire.HAS_CORRELATION_ID
        if event_type := _if_short(claim.event_type):
            flags |= wire.HAS_TYPE
        return b"".join(
            (
                wire.CONTENT.pack(wire.PUBLISH[0], 0, size, flags),
                content_type,
                len(table).to_bytes(4, "big"),
                table,
                wire.PERSISTENT,
                correlation_id,
                wire.short_string(claim.event_id),
                _unix_seconds(claim.happened_at).to_bytes(8, "big"),
                event_type,
            )
        )

    def _table(self, headers: Headers) -> bytes:
        names, pack = self._names, wire.LONG_STRING.pack
        parts: list[bytes] = []
        # In a table of AMQP a name occurs once. The last one counts, which is ours where the
        # application uses one of our names.
        for name, value in dict(headers).items():
            parts.append(names.get(name) or self._name(name))
            if value.__class__ is str:
                raw = value.encode()
                parts += (pack(b"S", len(raw)), raw)
            elif value is None:
                parts.append(b"V")
            else:
                assert isinstance(value, bytes)
                parts += (pack(b"x", len(value)), value)
        return b"".join(parts)

    def _name(self, name: str) -> bytes:
        if name in ROUTES_BY:
            raise ValueError(f"RabbitMQ would read its header {name} as routing keys")
        if len(self._names) >= CACHED_NAMES:
            self._names.clear()
        raw = self._names[name] = wire.short_string(name)
        return raw

    def _publish_to(self, key: str) -> bytes:
        if len(self._publish) >= CACHED_NAMES:
            self._publish.clear()
        frame = self._publish[key] = wire.publish(self._exchange, key)
        return frame


def too_large(size: int, largest: int) -> Refused:
    return refused("TOO_LARGE", f"it has {size} bytes, and the limit is {largest}")


def _content_type(claim: Claim, headers: Headers) -> str | bytes | None:
    """The application's header, if it has set one: that is what consumers of other kinds read."""
    if claim.headers_json is not None and "content-type" in claim.headers_json.lower():
        for name, value in headers:
            if name.lower() == "content-type":
                return value
    return claim.content_type


def _if_short(text: str | bytes) -> bytes:
    """As a property, which takes 255 bytes; a longer one is in the headers alone."""
    raw = text.encode() if isinstance(text, str) else text
    size = len(raw)
    return bytes((size,)) + raw if size <= wire.LONGEST_SHORT_STRING_BYTES else b""


def _unix_seconds(moment: Moment) -> int:
    return max(0, EPOCH_UNIX_SECONDS + moment // 1_000_000)
