"""The record that becomes of a claim: topic and key. Its headers are in `test_messages`."""

import pytest

from conformance.publisher_contract import make_claim
from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import ErrorClass, Refused
from outbox_relay.publishers.kafka.messages import messages_for, topic_template
from outbox_relay.publishers.messages import Template


def template_of(topic: str) -> Template:
    return topic_template(KafkaSettings(bootstrap_servers="x:1", topic=topic))


@pytest.mark.parametrize(
    ("template", "topic"),
    [
        ("events", "events"),
        ("{event_type}", "order.created"),
        ("{tenant_id}.{aggregate_type}", "acme.Order"),
        ("out-{event_type}_{event_type}", "out-order.created_order.created"),
    ],
)
def test_a_template_is_filled_with_the_fields_of_the_event(template: str, topic: str) -> None:
    claim = make_claim(tenant_id="acme", aggregate_type="Order")
    fill = template_of(template)
    assert fill(claim) == topic
    assert fill(claim) == topic  # from memory


def test_each_event_type_gets_its_own_topic() -> None:
    fill = template_of("{event_type}")
    assert fill(make_claim(event_type="a")) == "a"
    assert fill(make_claim(event_type="b")) == "b"


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{payload}", r"\{event_type\}, \{aggregate_type\}, \{tenant_id\}"),
        ("{}", r"\{event_type\}, \{aggregate_type\}, \{tenant_id\}"),
        ("{event_type.__class__}", r"fields are \{event_type\}"),
        ("{event_type!r}", r"fields are \{event_type\}"),
        ("{event_type:>10}", r"fields are \{event_type\}"),
        ("{event_type", r"fields are \{event_type\}"),
        ("event_type}", r"fields are \{event_type\}"),
        (
            "orders/{event_type}",
            r"kafka\.topic 'orders/\{event_type\}' does not make a legal topic: it may have",
        ),
        ("..", "does not make a legal topic"),
        ("x" * 250, "does not make a legal topic"),
    ],
)
def test_a_template_that_cannot_work_is_refused_at_once(template: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        template_of(template)


@pytest.mark.parametrize(
    "event_type",
    ["order created", "bestellung.ausgelöst", "topic://orders", "x" * 250, "..", "trailing\n"],
)
def test_an_illegal_topic_name_is_the_events_own_error(event_type: str) -> None:
    refused = template_of("{event_type}")(make_claim(event_type=event_type))
    assert isinstance(refused, Refused)
    assert refused.error.kind is ErrorClass.EVENT
    assert refused.error.code == "INVALID_TOPIC"


def test_the_longest_legal_topic_name_is_accepted() -> None:
    assert template_of("{event_type}")(make_claim(event_type="x" * 249)) == "x" * 249


def test_an_event_without_a_field_of_the_template_has_no_topic() -> None:
    refused = template_of("{tenant_id}.{event_type}")(make_claim())
    assert isinstance(refused, Refused)
    assert refused.error.kind is ErrorClass.EVENT
    assert "tenant_id" in refused.error.text


def test_topics_are_known_before_anything_is_published() -> None:
    samples: list[dict[str, str | None]] = [
        {"event_type": "a", "tenant_id": "t1"},
        {"event_type": "a", "tenant_id": "t2"},
        {"event_type": "a", "tenant_id": None},
        {"event_type": "no name", "tenant_id": "t1"},
    ]
    assert template_of("{tenant_id}.{event_type}").names(samples) == ["t1.a", "t2.a"]


def test_the_key_is_the_partition_key_otherwise_the_ordering_key() -> None:
    key = messages_for(KafkaSettings(bootstrap_servers="x:1")).key
    assert key(make_claim(partition_key="p", ordering_key="o", aggregate_id="a")) == "p"
    assert key(make_claim(ordering_key="o", aggregate_id="a")) == "o"
    assert key(make_claim(aggregate_id="a")) is None


def test_debeziums_key_is_the_aggregates_id_whatever_else_there_is() -> None:
    messages = messages_for(KafkaSettings(bootstrap_servers="x:1", format="Debezium"))
    claim = make_claim(partition_key="p", ordering_key="o", aggregate_id="a")
    assert (messages.topic(claim), messages.key(claim)) == ("order.created", "a")


def test_debeziums_key_is_none_without_an_aggregates_id() -> None:
    messages = messages_for(KafkaSettings(bootstrap_servers="x:1", format="Debezium"))
    claim = make_claim(ordering_key="o", partition_key="p")
    assert (messages.topic(claim), messages.key(claim)) == ("order.created", None)
    assert messages.key(make_claim(aggregate_id="")) == ""
