"""The record that becomes of a claim: topic and headers."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from conformance.publisher_contract import make_claim
from outbox_core.contract.settings import KafkaSettings
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import ErrorClass, Refused
from outbox_relay.publishers.kafka_messages import (
    CloudEventHeaders,
    TopicTemplate,
    raw_headers,
    topics_for,
)


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
    fill = TopicTemplate(template)
    assert fill(claim) == topic
    assert fill(claim) == topic  # from memory


def test_each_event_type_gets_its_own_topic() -> None:
    fill = TopicTemplate("{event_type}")
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
        ("orders/{event_type}", "cannot be part of a topic name"),
    ],
)
def test_a_template_that_cannot_work_is_refused_at_once(template: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        TopicTemplate(template)


@pytest.mark.parametrize(
    "event_type",
    ["order created", "bestellung.ausgelöst", "topic://orders", "x" * 250, "..", "trailing\n"],
)
def test_an_illegal_topic_name_is_the_events_own_error(event_type: str) -> None:
    refused = TopicTemplate("{event_type}")(make_claim(event_type=event_type))
    assert isinstance(refused, Refused)
    assert refused.error.kind is ErrorClass.EVENT
    assert refused.error.code == "INVALID_TOPIC"


def test_the_longest_legal_topic_name_is_accepted() -> None:
    assert TopicTemplate("{event_type}")(make_claim(event_type="x" * 249)) == "x" * 249


def test_an_event_without_a_field_of_the_template_has_no_topic() -> None:
    refused = TopicTemplate("{tenant_id}.{event_type}")(make_claim())
    assert isinstance(refused, Refused)
    assert refused.error.kind is ErrorClass.EVENT
    assert "tenant_id" in refused.error.text


def test_topics_are_known_before_anything_is_published() -> None:
    settings = KafkaSettings(bootstrap_servers="x:1", topic="{tenant_id}.{event_type}")
    samples: list[dict[str, str | None]] = [
        {"event_type": "a", "tenant_id": "t1"},
        {"event_type": "a", "tenant_id": "t2"},
        {"event_type": "a", "tenant_id": None},
        {"event_type": "no name", "tenant_id": "t1"},
    ]
    assert topics_for(settings, samples) == {"t1.a", "t2.a"}


CREATED = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))


def test_ek_01_a_raw_record_tells_all_that_is_known_of_the_event() -> None:
    claim = make_claim(
        event_id="id-1",
        event_type="order.created",
        attempts=3,
        created_at=CREATED,
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
        correlation_id="cor",
        causation_id="cau",
        idempotency_key="idem",
        tenant_id="acme",
        aggregate_type="Order",
        aggregate_id="42",
        content_type="application/json",
        traceparent_in_metadata="00-abc-def-01",
        partition_key="p",
        ordering_key="o",
    )
    assert raw_headers(claim) == [
        ("content-type", "application/json"),
        ("traceparent", "00-abc-def-01"),
        ("outbox-event-id", "id-1"),
        ("outbox-event-type", "order.created"),
        ("outbox-attempt", "3"),
        ("outbox-created-at", "2026-01-02T01:04:05.000678Z"),
        ("outbox-occurred-at", "2026-01-01T00:00:00.000000Z"),
        ("outbox-correlation-id", "cor"),
        ("outbox-causation-id", "cau"),
        ("outbox-idempotency-key", "idem"),
        ("outbox-tenant-id", "acme"),
        ("outbox-aggregate-type", "Order"),
        ("outbox-aggregate-id", "42"),
        ("outbox-ordering-key", "o"),
    ]


def test_a_field_that_is_absent_makes_no_header() -> None:
    assert [name for name, _ in raw_headers(make_claim(ordering_key="o"))] == [
        "outbox-event-id",
        "outbox-event-type",
        "outbox-attempt",
        "outbox-created-at",
    ]


def test_em_25_the_applications_headers_come_first_and_untouched() -> None:
    stored = [("X-A", "1"), ("x-a", "2"), ("X-A", ""), ("ü", "é"), ("gone", None)]
    assert raw_headers(make_claim(headers=stored))[:5] == stored


def test_oo_23_a_taken_name_is_kept_and_ours_comes_last() -> None:
    claim = make_claim(headers={"outbox-event-id": "theirs"}, event_id="ours")
    values = [value for name, value in raw_headers(claim) if name == "outbox-event-id"]
    assert values == ["theirs", "ours"]


def test_tc_34_a_traceparent_of_the_application_wins_over_the_metadatas() -> None:
    claim = make_claim(headers={"Traceparent": "app"}, traceparent_in_metadata="metadata")
    found = [header for header in raw_headers(claim) if header[0].lower() == "traceparent"]
    assert found == [("Traceparent", "app")]


def test_a_content_type_of_the_application_is_not_repeated() -> None:
    claim = make_claim(headers={"Content-Type": "text/plain"}, content_type="application/json")
    found = [header for header in raw_headers(claim) if header[0].lower() == "content-type"]
    assert found == [("Content-Type", "text/plain")]


def test_sequences_of_cloud_events_order_as_strings() -> None:
    make = CloudEventHeaders("/shop")
    low = dict(make(make_claim(seq=9)))["ce_sequence"]
    high = dict(make(make_claim(seq=10)))["ce_sequence"]
    assert isinstance(low, str)
    assert isinstance(high, str)
    assert low < high


def test_the_time_of_a_cloud_event_is_when_it_happened_if_that_is_known() -> None:
    make = CloudEventHeaders("/shop")
    happened = dict(
        make(make_claim(created_at=CREATED, occurred_at=datetime(2026, 1, 1, tzinfo=UTC)))
    )
    assert happened["ce_time"] == "2026-01-01T00:00:00.000000Z"
    assert happened["ce_recordedtime"] == "2026-01-02T01:04:05.000678Z"
    stored = dict(make(make_claim(created_at=CREATED)))
    assert stored["ce_time"] == "2026-01-02T01:04:05.000678Z"
    assert "ce_recordedtime" not in stored


def test_an_empty_field_is_no_attribute_of_a_cloud_event() -> None:
    headers = dict(CloudEventHeaders("/shop")(make_claim(aggregate_id="", ordering_key="")))
    assert "ce_subject" not in headers
    assert "ce_partitionkey" not in headers
