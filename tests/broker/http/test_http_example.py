"""examples/relay-http.yaml on a real server, which has no name that says the tenant."""

import base64

import pytest
from standardwebhooks import Webhook

from conformance.publisher_contract import make_claim
from dev.services.http import HttpServer
from fixtures.examples import MakeExample
from outbox_core.model.attempt import Acked

pytestmark = pytest.mark.http

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


def test_the_example_publishes(http_server: HttpServer, make_example: MakeExample) -> None:
    publisher = make_example(
        "http",
        {"signing": SECRET},
        url=f"{http_server.url}/{{tenant_id}}/orders/{{event_type}}",
        allowedHosts=None,
    )
    (outcome,) = publisher.publish([make_claim(b'{"id":1}', tenant_id="acme")])
    assert isinstance(outcome, Acked), outcome
    (got,) = http_server.received(1)
    assert (got.path, got.body) == ("/acme/orders/order.created", b'{"id":1}')
    assert (got.header("ce-type"), got.header("ce-source")) == ("order.created", "/shop")
    signed = ("webhook-id", "webhook-timestamp", "webhook-signature")
    Webhook(SECRET).verify(got.body, {name: got.header(name) or "" for name in signed})
