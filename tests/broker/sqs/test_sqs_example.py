"""examples/relay-sqs.yaml on a server that is not Amazon's: an endpoint, and keys for it."""

import pytest

from broker.sqs.conftest import KEYS
from broker.sqs.queues import Queues
from conformance.publisher_contract import SAMPLES, make_claim
from dev.services import ElasticMq
from fixtures.examples import MakeExample
from outbox_core.model.attempt import Acked

pytestmark = pytest.mark.sqs


def test_the_example_publishes(
    elasticmq: ElasticMq, queues: Queues, make_example: MakeExample
) -> None:
    url = queues.make(fifo=True, name="orders")
    publisher = make_example(
        "sqs",
        endpoint=elasticmq.url,
        accessKeyId=KEYS["access_key_id"],
        secretAccessKey=KEYS["secret_access_key"],
    )
    (outcome,) = publisher.publish([make_claim(b"paid", ordering_key="order-1")])
    assert isinstance(outcome, Acked), outcome
    (message,) = queues.received(url, 1)
    assert (message.payload, message.group) == (b"paid", "order-1")
    assert not [r for r in publisher.check(SAMPLES) if r.level == "fail"]
