"""Killed, frozen, cut off, and trickling: what is reported, and how soon."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

from broker.redis.servers import MakePublisher, entries
from conformance.publisher_contract import make_claim
from dev.services import wait_until
from dev.services.redis import Redis
from outbox_core.errors import PublisherError
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent

pytestmark = pytest.mark.redis

GRACE = 2.0
"""What a call may take beyond its timeout on a busy machine."""


def is_outage(outcome: Outcome) -> bool:
    return isinstance(outcome, Refused) and outcome.error.kind is ErrorClass.OUTAGE


class Between:
    """A proxy that answers with what `treat` makes of the server's answers; b"" cuts it off."""

    def __init__(self, server: Redis, treat: Callable[[bytes], bytes]) -> None:
        self._server = server
        self._treat = treat
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._server.port))
            for source, sink, treat in ((near, far, bytes), (far, near, self._treat)):
                threading.Thread(target=self._pump, args=(source, sink, treat), daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, treat: Callable[[bytes], bytes]
    ) -> None:
        try:
            while (data := source.recv(65536)) and (answer := treat(data)):
                sink.sendall(answer)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@pytest.fixture
def between(redis: Redis) -> Iterator[Callable[[Callable[[bytes], bytes]], str]]:
    made: list[Between] = []

    def put(treat: Callable[[bytes], bytes]) -> str:
        made.append(Between(redis, treat))
        return made[-1].url

    yield put
    for proxy in made:
        proxy.close()


def test_a_connection_cut_before_the_answer_leaves_its_events_in_doubt(
    redis: Redis,
    stream: str,
    make_publisher: MakePublisher,
    between: Callable[[Callable[[bytes], bytes]], str],
) -> None:
    def swallow(answer: bytes) -> bytes:
        return b"" if b"QUEUED" in answer else answer

    publisher = make_publisher(stream, url=between(swallow))
    outcomes = publisher.publish([make_claim(), make_claim()])
    assert all(is_outage(o) for o in outcomes)
    assert isinstance(outcomes[0], Refused)
    assert outcomes[0].error.code == "CONNECTION_LOST"
    assert "in doubt" in outcomes[0].error.text
    wait_until(lambda: len(entries(redis, stream)) == 2, 5, "both are there nevertheless")


def test_a_server_that_trickles_does_not_hold_a_call_beyond_its_deadline(
    stream: str, make_publisher: MakePublisher
) -> None:
    over = threading.Event()

    def trickle() -> None:
        """Greets, and then has an answer without end."""
        peer, _ = listener.accept()
        with suppress(OSError), peer:
            peer.recv(65536)
            peer.sendall(b"+OK\r\n-ERR ")
            while not over.wait(0.05):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle)
        thread.start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        publisher = make_publisher(stream, url=url, timeout=1)
        begin = time.monotonic()
        outcomes = publisher.publish([make_claim() for _ in range(3)])
        took = time.monotonic() - begin
        over.set()
        thread.join(5)
    assert 0.9 < took < 1 + GRACE
    assert all(is_outage(o) for o in outcomes)


def test_a_frozen_server_is_an_outage_in_time_and_back_when_it_thaws(
    server: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream, timeout=1)
    assert isinstance(publisher.publish([make_claim(b"0")])[0], Acked)
    server.pause()
    begin = time.monotonic()
    # More than fits into the socket's buffers, so that sending itself stands still.
    outcomes = publisher.publish([make_claim(b"x" * 900_000) for _ in range(12)])
    assert time.monotonic() - begin < 1 + GRACE
    assert is_outage(outcomes[0])
    assert all(is_outage(o) or isinstance(o, Unsent) for o in outcomes)
    server.resume()
    assert isinstance(publisher.publish([make_claim(b"1")])[0], Acked)


def test_a_server_killed_in_the_middle_keeps_all_that_it_acknowledged(
    server: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream, timeout=5)
    acked: list[str] = []
    in_doubt: list[Outcome] = []
    begun = threading.Event()

    def publish() -> None:
        while not in_doubt:
            batch = [make_claim() for _ in range(200)]
            outcomes = publisher.publish(batch)
            begun.set()
            pairs = zip(batch, outcomes, strict=True)
            acked.extend(c.event_id for c, o in pairs if isinstance(o, Acked))
            in_doubt.extend(o for o in outcomes if not isinstance(o, Acked))

    thread = threading.Thread(target=publish)
    thread.start()
    assert begun.wait(10)
    server.kill()
    thread.join(20)
    assert not thread.is_alive()
    assert all(is_outage(o) for o in in_doubt)
    with pytest.raises(PublisherError):
        publisher.probe()
    server.start()
    kept = {dict(e.headers)["outbox-event-id"] for e in entries(server, stream)}
    assert set(acked) <= kept
    assert (len(kept) - len(acked)) in (0, 200)  # the transaction in doubt: all of it, or none


def test_a_restart_between_two_calls_costs_nothing(
    server: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    server.restart()
    assert isinstance(publisher.publish([make_claim()])[0], Acked)


def test_close_does_not_wait_longer_than_it_is_told(
    server: Redis, stream: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(stream, timeout=20)
    publisher.publish([make_claim()])
    server.pause()
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(publisher.publish([make_claim()])))
    thread.start()
    wait_until(lambda: publisher._busy, 5, "it is on its way")
    publisher.close(timedelta(milliseconds=200))
    thread.join(5)
    assert not thread.is_alive()
    assert is_outage(outcomes[0])
