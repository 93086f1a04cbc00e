"""What goes wrong with servers and networks: nothing is acknowledged that is not there."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count

import pytest

from broker.rabbitmq.publishers import Broker, MakePublisher
from conformance.publisher_contract import make_claim
from dev.services import RabbitMQ, wait_until
from dev.services.rabbitmq import MEMORY
from fixtures.peers import listening, to_server
from outbox_core.errors import PublisherError
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.rabbitmq.publisher import RabbitMQPublisher
from outbox_relay.publishers.rabbitmq.wire import HEARTBEAT_FRAME

pytestmark = pytest.mark.rabbitmq


def assert_nothing_worse_than_an_outage(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        assert isinstance(outcome, Acked | Unsent) or outcome.error.kind is ErrorClass.OUTAGE


class Stream:
    """Publishes batch after batch on a thread, until something fails."""

    def __init__(self, publisher: RabbitMQPublisher, size: int) -> None:
        self._publisher = publisher
        self._size = size
        self.acked: set[str] = set()
        self.last: Sequence[Outcome] = ()
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while all(isinstance(o, Acked) for o in self.last):
            batch: list[Claim] = [make_claim(b"x" * 1000) for _ in range(self._size)]
            begin = time.monotonic()
            self.last = self._publisher.publish(batch)
            self.seconds = time.monotonic() - begin
            for claim, outcome in zip(batch, self.last, strict=True):
                if isinstance(outcome, Acked):
                    self.acked.add(claim.event_id)

    def ended(self) -> Sequence[Outcome]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.last


def test_a_server_killed_in_a_batch_has_all_that_it_acknowledged(
    make_publisher: MakePublisher, broker: Broker, queue: str, mortal_rabbitmq: RabbitMQ
) -> None:
    mortal_rabbitmq.write_declared()
    publisher = make_publisher(queue, timeout=10)
    stream = Stream(publisher, 500)
    wait_until(lambda: len(stream.acked) > 2000, 30, "it is at work")
    mortal_rabbitmq.kill()
    assert_nothing_worse_than_an_outage(stream.ended())
    mortal_rabbitmq.start()
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    there = {message.properties["message_id"] for message in broker.read(queue)}
    assert stream.acked <= there


def test_a_server_that_freezes_in_a_batch_is_waited_for_until_the_deadline(
    make_publisher: MakePublisher, queue: str, frozen_rabbitmq: RabbitMQ
) -> None:
    # More than the sockets' buffers take: so it also stands in the way of sending.
    stream = Stream(make_publisher(queue, timeout=2), 20_000)
    wait_until(lambda: stream.acked or stream.seconds == 0, 30, "it is at work")
    frozen_rabbitmq.pause()
    outcomes = stream.ended()
    assert_nothing_worse_than_an_outage(outcomes)
    assert not all(isinstance(o, Acked) for o in outcomes)
    assert stream.seconds < 3.5


@pytest.fixture
def alarm(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    rabbitmq.control("set_vm_memory_high_watermark", "0")
    yield rabbitmq
    rabbitmq.control("set_vm_memory_high_watermark", "absolute", MEMORY)


def test_a_server_short_of_memory_is_an_outage_until_it_says_otherwise(
    make_publisher: MakePublisher, alarm: RabbitMQ, queue: str
) -> None:
    publisher = make_publisher(queue, timeout=10)
    begin = time.monotonic()
    outcomes = publisher.publish([make_claim() for _ in range(10)])
    assert time.monotonic() - begin < 5
    assert_nothing_worse_than_an_outage(outcomes)
    assert not any(isinstance(o, Acked) for o in outcomes)
    with pytest.raises(PublisherError, match="low on memory"):
        publisher.probe()
    begin = time.monotonic()
    (again,) = publisher.publish([make_claim()])
    assert isinstance(again, Refused)
    assert again.error.code == "BLOCKED"
    assert time.monotonic() - begin < 0.5  # it did not even try
    alarm.control("set_vm_memory_high_watermark", "absolute", MEMORY)
    wait_until(lambda: not _fails_probe(publisher), 10, "the end of the alarm is heard")
    assert isinstance(publisher.publish([make_claim()])[0], Acked)


def _fails_probe(publisher: RabbitMQPublisher) -> bool:
    try:
        publisher.probe()
    except PublisherError:
        return True
    return False


def test_a_connection_cut_before_the_confirm_leaves_the_event_in_doubt(
    make_publisher: MakePublisher, broker: Broker, rabbitmq: RabbitMQ, queue: str
) -> None:
    published = threading.Event()

    def note(data: bytes) -> bool:
        if queue.encode() in data:
            published.set()
        return True

    serve = to_server(rabbitmq.port, note, lambda _: not published.is_set())
    with listening(serve) as host:
        claim = make_claim()
        (outcome,) = make_publisher(queue, hosts=host, timeout=5).publish([claim])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    (message,) = broker.read(queue, 1)
    assert message.properties["message_id"] == claim.event_id  # it was in doubt, and it is there


def test_a_connection_that_ended_while_nobody_used_it_costs_no_event(
    make_publisher: MakePublisher, rabbitmq: RabbitMQ, queue: str
) -> None:
    sockets: list[socket.socket] = []
    relay = to_server(rabbitmq.port)

    def serve(client: socket.socket) -> None:
        sockets.append(client)
        relay(client)

    with listening(serve) as host:
        publisher = make_publisher(queue, hosts=host)
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        sockets[0].shutdown(socket.SHUT_RDWR)
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        assert len(sockets) == 2


def test_an_idle_connection_is_kept_by_heartbeats(
    make_publisher: MakePublisher, rabbitmq: RabbitMQ, queue: str
) -> None:
    beats, connections = count(), count()
    seen = 0

    def note(data: bytes) -> bool:
        nonlocal seen
        if HEARTBEAT_FRAME in data:
            seen = next(beats) + 1
        if data.startswith(b"AMQP"):
            next(connections)
        return True

    with listening(to_server(rabbitmq.port, note)) as host:
        publisher = make_publisher(queue, hosts=host, heartbeat="1s")
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        # After two that are missing, the server would have closed it.
        wait_until(lambda: seen >= 5, 20, "five heartbeats")
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
    assert next(connections) == 1


def trickle(client: socket.socket) -> None:
    """A frame that is never whole, and always about to be."""
    client.recv(1 << 16)
    client.sendall(b"\x01\x00\x00\x00\x00\xff\xff")
    client.settimeout(0.05)
    while True:
        client.sendall(b"\x00")
        with suppress(TimeoutError):
            if not client.recv(1):
                return


def silence(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass


def nonsense(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    silence(client)


@pytest.mark.parametrize("serve", [trickle, silence, nonsense])
def test_a_peer_that_does_not_answer_as_it_should_is_an_outage_in_time(
    make_publisher: MakePublisher, queue: str, serve: object
) -> None:
    with listening(serve) as host:  # type: ignore[arg-type]
        begin = time.monotonic()
        (outcome,) = make_publisher(queue, hosts=host, timeout=1).publish([make_claim()])
        assert time.monotonic() - begin < 2
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE


def test_the_next_host_is_used_where_one_does_not_answer(
    make_publisher: MakePublisher, rabbitmq: RabbitMQ, queue: str
) -> None:
    with listening(silence) as silent:
        hosts = f"127.0.0.1:1, {silent}, {rabbitmq.host}"
        publisher = make_publisher(queue, hosts=hosts, timeout=3)
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        begin = time.monotonic()
        publisher.probe()  # it remembers which one answered
        assert time.monotonic() - begin < 1
