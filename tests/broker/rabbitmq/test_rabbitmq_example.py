"""examples/relay-rabbitmq.yaml on a real server, over TLS."""

import pytest

from broker.rabbitmq.publishers import Broker
from conformance.publisher_contract import SAMPLES, make_claim
from dev.services import RabbitMQ
from dev.services.rabbitmq import USER
from fixtures.examples import MakeExample
from outbox_core.model.attempt import Acked

pytestmark = pytest.mark.rabbitmq

VHOST = "shop"


def test_the_example_publishes(
    rabbitmq: RabbitMQ, broker: Broker, make_example: MakeExample
) -> None:
    rabbitmq.control("add_vhost", VHOST)
    rabbitmq.control("set_permissions", "-p", VHOST, USER, ".*", ".*", ".*")
    queue = broker.queue(VHOST)
    with broker.connect(VHOST) as connection:
        channel = connection.channel()
        channel.exchange_declare("events", "topic", durable=True, auto_delete=False)
        channel.queue_bind(queue, "events", "order.*")
    secrets = {
        "username": USER,
        "password": rabbitmq.password,
        "ca.crt": rabbitmq.ca.read_text(),
    }
    publisher = make_example("rabbitmq", secrets, hosts=rabbitmq.secure_host)
    (outcome,) = publisher.publish([make_claim(b"paid")])
    assert isinstance(outcome, Acked), outcome
    (message,) = broker.read(queue, 1, VHOST)
    assert message.body == b"paid"
    assert not [r for r in publisher.check(SAMPLES) if r.level == "fail"]
