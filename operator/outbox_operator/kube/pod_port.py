"""
The port of a pod: one request for its status, and the answer.

Called by `reports`. A connection for each request: it is needed once in half a minute, and a pod
keeps a thread for each connection that stays open. Not an HTTP client for everything, because that
costs almost twice as much, and five hundred relays are asked all day long.
"""

import asyncio

LONGEST_ANSWER_BYTES = 1_000_000


class NotAnswered(Exception):
    """The connection was closed without an answer, or with one that is not HTTP."""


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self.received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """Everything that was received, once the pod has closed the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > LONGEST_ANSWER_BYTES:
            self.abandon()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.received.done():
            self.received.set_result(bytes(self._received))

    def abandon(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def get(address: str, port: int, path: str) -> tuple[int, bytes]:
    """Status and content of the answer. Raises OSError, or NotAnswered."""
    host = f"[{address}]" if ":" in address else address
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: _Connection(request), address, port)
    try:
        return _parsed(await connection.received)
    finally:
        connection.abandon()


def _parsed(answer: bytes) -> tuple[int, bytes]:
    head, _, content = answer.partition(b"\r\n\r\n")
    try:
        protocol, status, *_ = head.split(b"\r\n", 1)[0].split(b" ", 2)
        if not protocol.startswith(b"HTTP/1."):
            raise ValueError(protocol)
        return int(status), content
    except ValueError as error:
        raise NotAnswered(str(error)) from error
