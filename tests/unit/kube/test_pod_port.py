"""The port of a pod, and what may answer there in its place."""

import asyncio

import pytest

from outbox_operator.kube import pod_port
from outbox_operator.kube.pod_port import NotAnswered, get


def asked(answer: bytes, host: str = "127.0.0.1") -> tuple[bytes, tuple[int, bytes]]:
    """The request that a server got, and what was understood of its answer."""
    requests: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        for part in (answer[:20], answer[20:]):
            writer.write(part)
            await writer.drain()
        writer.close()

    async def test() -> tuple[int, bytes]:
        async with await asyncio.start_server(talk, host, 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with asyncio.timeout(5):
                return await get(host, port, "/status")

    found = asyncio.run(test())
    return requests[0], found


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_answer_that_comes_in_parts_is_read_to_its_end(host: str) -> None:
    request, found = asked(b'HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}', host)
    assert found == (200, b'{"a": 1}')
    named = f"[{host}]" if ":" in host else host
    assert request.startswith(f"GET /status HTTP/1.1\r\nHost: {named}:".encode())
    assert b"\r\nConnection: close\r\n" in request


def test_an_answer_of_a_proxy_is_its_own() -> None:
    _, found = asked(b"HTTP/1.1 503 Service Unavailable\r\n\r\nupstream connect error")
    assert found == (503, b"upstream connect error")


@pytest.mark.parametrize("answer", [b"", b"\x15\x03\x03\x00\x02\x02\x50", b"220 mail ESMTP\r\n"])
def test_what_is_no_http_is_no_answer(answer: bytes) -> None:
    with pytest.raises(NotAnswered):
        asked(answer)


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_port, "LONGEST_ANSWER_BYTES", 1000)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 500)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            writer.close()

    async def test() -> int:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(5):
            _, content = await get("127.0.0.1", port, "/status")
        server.close()
        return len(content)

    assert asyncio.run(test()) < 1_000_000
