"""Names to addresses: nobody waits for a name server beyond the deadline of the call."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from conformance.publisher_contract import make_claim
from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.contract.publishers.redis import RedisSettings
from outbox_core.model.attempt import ErrorClass, Refused
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.publishers.rabbitmq.publisher import RabbitMQPublisher
from outbox_relay.publishers.redis.publisher import RedisPublisher
from outbox_relay.publishers.resolving import beside, in_time, look_up

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
