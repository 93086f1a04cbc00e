"""
AMQP 0-9-1 on the wire, as much of it as a publisher needs. Pure: bytes in, bytes out.

Written here rather than taken from a client: the clients for threads wait for each message, or poll
for an answer after each, and none ends a call at its deadline when the peer sends a byte now and
then.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

PROTOCOL: Final = b"AMQP\x00\x00\x09\x01"
CHANNEL: Final = 1
"""The only one of a connection: a connection belongs to one call at a time."""
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8
LONGEST_SHORT_STRING_BYTES: Final = 255

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
OF_CONNECTION: Final = 10
"""The class of those methods that belong to no channel, which is channel 0."""

Method = tuple[int, int]
START, START_OK = (10, 10), (10, 11)
TUNE, TUNE_OK = (10, 30), (10, 31)
OPEN, OPEN_OK = (10, 40), (10, 41)
CLOSE, CLOSE_OK = (10, 50), (10, 51)
BLOCKED, UNBLOCKED = (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
CHANNEL_CLOSE = (20, 40)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
PUBLISH, RETURN, ACK, NACK = (60, 40), (60, 50), (60, 80), (60, 120)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)

PASSIVE: Final = 1
MANDATORY: Final = 1
PERSISTENT: Final = b"\x02"
MULTIPLE: Final = 1

HAS_CONTENT_TYPE, HAS_ENCODING, HAS_HEADERS = 1 << 15, 1 << 14, 1 << 13
HAS_DELIVERY_MODE, HAS_PRIORITY, HAS_CORRELATION_ID = 1 << 12, 1 << 11, 1 << 10
HAS_REPLY_TO, HAS_EXPIRATION, HAS_MESSAGE_ID = 1 << 9, 1 << 8, 1 << 7
HAS_TIMESTAMP, HAS_TYPE = 1 << 6, 1 << 5

FRAME: Final = struct.Struct(">BHI")
LONG_STRING: Final = struct.Struct(">cI")
METHOD_ID: Final = struct.Struct(">HH")
CONTENT: Final = struct.Struct(">HHQH")
TAG: Final = struct.Struct(">QB")
END: Final = bytes([FRAME_END])
HEARTBEAT_FRAME: Final = FRAME.pack(HEARTBEAT, 0, 0) + END


class BadFrame(ValueError):
    """What came is not AMQP."""


class Frame(NamedTuple):
    type: int
    channel: int
    payload: bytes

    @property
    def method(self) -> Method:
        return METHOD_ID.unpack_from(self.payload)

    @property
    def proper_channel(self) -> int:
        is_of_connection = self.type == METHOD and self.method[0] == OF_CONNECTION
        return 0 if is_of_connection or self.type == HEARTBEAT else CHANNEL


class Closing(NamedTuple):
    """Why the server ends a channel or a connection."""

    code: int
    text: str


def frames(received: bytearray, largest: int) -> Iterator[Frame]:
    """The complete ones, which are removed from `received`. None may be larger than agreed."""
    at = 0
    try:
        while len(received) - at >= FRAME_OVERHEAD:
            kind, channel, size = FRAME.unpack_from(received, at)
            end = at + FRAME.size + size
            if kind not in (METHOD, HEADER, BODY, HEARTBEAT):
                raise BadFrame(f"the answer is not AMQP 0-9-1: {bytes(received[:20])!r}")
            if size > largest:
                raise BadFrame(f"a frame of {size} bytes, but {largest} were agreed")
            if len(received) <= end:
                return
            if received[end] != FRAME_END:
                raise BadFrame("a frame does not end where it should")
            payload = bytes(received[at + FRAME.size : end])
            at = end + 1
            yield Frame(kind, channel, payload)
    finally:
        del received[:at]


def method_frame(channel: int, method: Method, arguments: bytes = b"") -> bytes:
    payload = METHOD_ID.pack(*method) + arguments
    return FRAME.pack(METHOD, channel, len(payload)) + payload + END


def short_string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > LONGEST_SHORT_STRING_BYTES:
        raise ValueError(f"longer than {LONGEST_SHORT_STRING_BYTES} bytes: {text[:40]}...")
    return bytes([len(raw)]) + raw


def long_string(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + raw


def table(fields: Iterable[tuple[str, str | bool | dict[str, bool]]]) -> bytes:
    """For a few fields that are written once; `messages` writes its own tables faster."""
    raw = b""
    for name, value in fields:
        raw += short_string(name)
        if isinstance(value, dict):
            raw += b"F" + table(value.items())
        elif isinstance(value, bool):
            raw += b"t" + bytes([value])
        else:
            raw += b"S" + long_string(value.encode())
    return long_string(raw)


def start_ok(mechanism: str, response: bytes) -> bytes:
    capabilities = {
        "publisher_confirms": True,
        "connection.blocked": True,
        "authentication_failure_close": True,  # otherwise a wrong password is a cut connection
    }
    properties = table(
        (
            ("product", "outbox-relay"),
            ("connection_name", "outbox-relay"),
            ("capabilities", capabilities),
        )
    )
    return method_frame(
        0,
        START_OK,
        properties + short_string(mechanism) + long_string(response) + short_string("en_US"),
    )


def tune_ok(channels: int, frame_max: int, heartbeat: int) -> bytes:
    return method_frame(0, TUNE_OK, struct.pack(">HIH", channels, frame_max, heartbeat))


def open_vhost(vhost: str) -> bytes:
    return method_frame(0, OPEN, short_string(vhost) + b"\x00\x00")


def ask_for_exchange(name: str) -> bytes:
    arguments = b"\x00\x00" + short_string(name) + short_string("") + bytes([PASSIVE]) + table(())
    return method_frame(CHANNEL, EXCHANGE_DECLARE, arguments)


def publish(exchange: str, routing_key: str) -> bytes:
    arguments = short_string(exchange) + short_string(routing_key) + bytes([MANDATORY])
    return method_frame(CHANNEL, PUBLISH, b"\x00\x00" + arguments)


def mechanisms(start: bytes) -> list[str]:
    """From the payload of START: after two numbers and a table."""
    at = METHOD_ID.size + 2
    at += 4 + int.from_bytes(start[at : at + 4], "big")
    size = int.from_bytes(start[at : at + 4], "big")
    return start[at + 4 : at + 4 + size].decode().split()


def tuning(tune: bytes) -> tuple[int, int, int]:
    """Channels, the largest frame, seconds between heartbeats; 0: no limit, or none."""
    return struct.unpack_from(">HIH", tune, METHOD_ID.size)


def closing(payload: bytes) -> Closing:
    """Of CLOSE and CHANNEL_CLOSE."""
    return Closing(
        int.from_bytes(payload[4:6], "big"), read_short_string(payload, 6).decode(errors="replace")
    )


def reason_of_blocked(payload: bytes) -> str:
    return read_short_string(payload, METHOD_ID.size).decode(errors="replace")


def reason_of_return(payload: bytes) -> str:
    return closing(payload).text  # the same layout as far as that


def message_id(header: bytes) -> str | None:
    """From the payload of a content header."""
    _, _, _, flags = CONTENT.unpack_from(header)
    at = CONTENT.size
    for flag in (HAS_CONTENT_TYPE, HAS_ENCODING):
        if flags & flag:
            at += 1 + header[at]
    if flags & HAS_HEADERS:
        at += 4 + int.from_bytes(header[at : at + 4], "big")
    for flag in (HAS_DELIVERY_MODE, HAS_PRIORITY):
        if flags & flag:
            at += 1
    for flag in (HAS_CORRELATION_ID, HAS_REPLY_TO, HAS_EXPIRATION):
        if flags & flag:
            at += 1 + header[at]
    if not flags & HAS_MESSAGE_ID:
        return None
    return read_short_string(header, at).decode(errors="replace")


def read_short_string(payload: bytes, at: int) -> bytes:
    return payload[at + 1 : at + 1 + payload[at]]
