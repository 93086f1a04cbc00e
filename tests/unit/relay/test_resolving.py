"""Names to addresses: nobody waits for a name server beyond the deadline of the call, nor for one
address of several."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from conformance.publisher_contract import make_claim
from dev.services import wait_until
from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.contract.publishers.redis import RedisSettings
from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.contract.values import SecretRef
from outbox_core.model.attempt import ErrorClass, Refused
from outbox_relay.publishers.nats.publisher import NatsPublisher
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.publishers.rabbitmq.publisher import RabbitMQPublisher
from outbox_relay.publishers.redis.publisher import RedisPublisher
from outbox_relay.publishers.resolving import beside, in_time, look_up
from outbox_relay.publishers.smtp.publisher import SmtpPublisher
from outbox_relay.publishers.sqs.publisher import SqsPublisher

TIMEOUT = timedelta(seconds=1)


def soon() -> float:
    return time.monotonic() + 0.05


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Name servers that do not answer."""
    over = threading.Event()

    def wait(*_: object, **__: object) -> list[Any]:
        over.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    yield
    over.set()


def test_an_address_is_found() -> None:
    addresses = [place[0] for *_, place in look_up("127.0.0.1", 80, time.monotonic() + 10)]
    assert addresses == ["127.0.0.1"]


@pytest.mark.usefixtures("silence")
def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    with pytest.raises(TimeoutError, match="not resolved in time"):
        look_up("example.test", 80, soon())


def test_what_is_no_name_has_no_address() -> None:
    with pytest.raises(OSError, match="label"):
        look_up("x" * 64 + ".test", 80, time.monotonic() + 10)


def test_an_error_of_the_resolver_is_the_callers() -> None:
    def fail() -> None:
        raise TimeoutError("of the resolver's own")

    with pytest.raises(TimeoutError, match="of the resolver's own"):
        in_time(beside(fail), time.monotonic() + 10)


def test_whoever_waits_can_be_sent_away() -> None:
    asked, over = threading.Event(), threading.Event()

    def wait() -> str:
        asked.set()
        over.wait(20)
        return "too late"

    found = beside(wait)
    assert asked.wait(10)
    found.set_exception(ConnectionAbortedError())
    with pytest.raises(ConnectionAbortedError):
        in_time(found, time.monotonic() + 10)
    over.set()  # what comes then is no error of the thread


def to_redis() -> Publisher:
    return RedisPublisher(
        RedisSettings(url="redis://redis.test:6379", delivery_timeout=TIMEOUT), in_order=False
    )


def to_rabbitmq() -> Publisher:
    return RabbitMQPublisher(RabbitMQSettings(hosts="rabbitmq.test", delivery_timeout=TIMEOUT))


def to_nats() -> Publisher:
    settings = NatsSettings(servers=("nats://nats.test",), delivery_timeout=TIMEOUT)
    return NatsPublisher(settings, in_order=False)


def to_smtp() -> Publisher:
    settings = SmtpSettings(
        host="mail.test",
        sender="a@example.com",
        allowed_recipient_domains=("*",),
        start_tls="None",
        delivery_timeout=TIMEOUT,
    )
    return SmtpPublisher(settings)


def to_sqs() -> Publisher:
    keys = SecretRef(env="PATH")  # whatever it is, nobody reads it here
    return SqsPublisher(
        SqsSettings(
            queue_url="http://sqs.test/1/orders",
            region="eu-west-1",
            access_key_id=keys,
            secret_access_key=keys,
            delivery_timeout=TIMEOUT,
        )
    )


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("make", [to_redis, to_rabbitmq])
def test_name_servers_that_do_not_answer_hold_no_call(make: Callable[[], Publisher]) -> None:
    publisher = make()
    began = time.monotonic()
    (outcome,) = publisher.publish([make_claim()])
    assert time.monotonic() - began < 5
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert "not resolved in time" in outcome.error.text
    publisher.close(timedelta(0))


@pytest.mark.usefixtures("silence")
def test_a_thread_that_waits_for_name_servers_ends_with_its_call() -> None:
    """The interpreter waits for it at the end of the process."""
    publisher = to_sqs()
    publisher.publish([make_claim()])
    publisher.close(timedelta(0))
    wait_until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("sqs_")], 5, "ended"
    )


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What listens at the second address of every name; the first is silent."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        socket.create_server(("127.0.0.1", 0)) as listens,
        ExitStack() as waiting,
    ):
        for _ in range(4):  # more than it takes before somebody accepts them
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(silent.getsockname())
        places = [silent.getsockname(), listens.getsockname()]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        yield listens


LETTER = b'{"to": "b@example.com", "subject": "s", "body": "t"}'


@pytest.mark.parametrize("make", [to_rabbitmq, to_nats, to_smtp, to_sqs])
def test_an_address_that_is_silent_leaves_time_for_the_next(
    make: Callable[[], Publisher], second: socket.socket
) -> None:
    publisher = make()
    second.settimeout(0.8 * TIMEOUT.total_seconds())
    call = threading.Thread(target=publisher.publish, args=([make_claim(LETTER)],))
    call.start()
    try:
        second.accept()[0].close()
    finally:
        call.join()
        publisher.close(timedelta(0))
