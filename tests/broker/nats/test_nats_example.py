"""examples/relay-nats.yaml on a real server, which asks for no login."""

import pytest

from broker.nats.streams import Admin
from conformance.publisher_contract import SAMPLES, make_claim
from dev.services import Nats
from fixtures.examples import MakeExample
from outbox_core.model.attempt import Acked

pytestmark = pytest.mark.nats


def test_the_example_publishes(nats: Nats, admin: Admin, make_example: MakeExample) -> None:
    admin.configure("CREATE", "ORDERS", ("shop.>",), {})
    publisher = make_example("nats", servers=[nats.url], credentialsFile=None)
    (outcome,) = publisher.publish([make_claim(b"paid")])
    assert isinstance(outcome, Acked), outcome
    assert [(m.subject, m.payload) for m in admin.received("ORDERS", 1)] == [
        ("shop.order.created", b"paid")
    ]
    assert not [r for r in publisher.check(SAMPLES) if r.level == "fail"]
