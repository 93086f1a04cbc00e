"""HTTP endpoints. `registry` calls these two functions."""

from outbox_core.contract.publishers.http import HttpSettings
from outbox_relay.publishers.http.messages import Messages
from outbox_relay.publishers.http.publisher import HttpPublisher
from outbox_relay.publishers.http.urls import egress
from outbox_relay.publishers.protocol import Publisher


def make(settings: HttpSettings, in_order: bool) -> Publisher:
    """`in_order` changes nothing: without a route the relay sends one event of a key at a time."""
    return HttpPublisher(settings)


def validate(settings: HttpSettings) -> None:
    Messages(settings)
    egress(settings, trusted=False)
