"""What becomes of a claim at any broker: where it goes by a template, and its headers."""

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import quote

import pytest

from conformance.publisher_contract import make_claim
from outbox_core.contract.publishers.common import Format, FormattedKind
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import ErrorClass, Refused
from outbox_relay.publishers.messages import (
    CACHED_NAMES,
    CloudEventHeaders,
    Template,
    headers_for,
    raw_headers,
    utc,
)


def no_spaces(name: str) -> str | None:
    return "it may have no spaces" if " " in name else None


def test_what_is_legal_is_asked_of_the_kind_and_said_in_its_words() -> None:
    template = Template("to.{event_type}", "pigeon.loft", "loft", no_spaces)
    assert template(make_claim(event_type="a")) == "to.a"
    refused = template(make_claim(event_type="a b"))
    assert isinstance(refused, Refused)
    assert refused.error == (
        ErrorClass.EVENT, "INVALID_LOFT", "'to.a b' is not a legal loft: it may have no spaces",
    )  # fmt: skip
    with pytest.raises(SettingsError, match=r"pigeon.loft 'a b' .* legal loft: it may have no"):
        Template("a b", "pigeon.loft", "loft", no_spaces)


def test_the_reason_is_shown_however_long_the_name_is() -> None:
    refused = Template("to.{event_type}", "pigeon.loft", "loft", no_spaces)(
        make_claim(event_type="a b" * 1000)
    )
    assert isinstance(refused, Refused)
    assert refused.error.text.startswith("'to.a ba b")
    assert refused.error.text.endswith("is not a legal loft: it may have no spaces")


def test_a_kind_may_allow_more_fields_and_escape_their_values() -> None:
    url = "http://x/{aggregate_id}?t={event_type}"
    template = Template(
        *(url, "http.url", "target URL", no_spaces),
        fields=("event_type", "aggregate_id"),
        escape=lambda value: quote(value, safe=""),
    )
    assert (
        template(make_claim(event_type="a&b", aggregate_id="1/2 3")) == "http://x/1%2F2%203?t=a%26b"
    )
    refused = template(make_claim(event_type="a"))
    assert isinstance(refused, Refused)
    assert refused.error.code == "NO_TARGET_URL"
    with pytest.raises(SettingsError, match=r"no field \{tenant_id\}; fields are \{event_type\}$"):
        Template("{tenant_id}", "http.url", "URL", no_spaces, fields=("event_type",))


def test_more_names_than_are_remembered_are_still_right() -> None:
    template = Template("{tenant_id}", "pigeon.loft", "loft", no_spaces)
    for n in (*range(CACHED_NAMES + 10), 0):
        assert template(make_claim(tenant_id=str(n))) == str(n)


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
    make = CloudEventHeaders("/shop", "ce_")
    low = dict(make(make_claim(seq=9)))["ce_sequence"]
    high = dict(make(make_claim(seq=10)))["ce_sequence"]
    assert isinstance(low, str)
    assert isinstance(high, str)
    assert low < high


def test_the_time_of_a_cloud_event_is_when_it_happened_if_that_is_known() -> None:
    make = CloudEventHeaders("/shop", "ce_")
    happened = dict(
        make(make_claim(created_at=CREATED, occurred_at=datetime(2026, 1, 1, tzinfo=UTC)))
    )
    assert happened["ce_time"] == "2026-01-01T00:00:00.000000Z"
    assert happened["ce_recordedtime"] == "2026-01-02T01:04:05.000678Z"
    stored = dict(make(make_claim(created_at=CREATED)))
    assert stored["ce_time"] == "2026-01-02T01:04:05.000678Z"
    assert "ce_recordedtime" not in stored


def test_an_empty_field_is_no_attribute_of_a_cloud_event() -> None:
    headers = dict(CloudEventHeaders("/shop", "ce_")(make_claim(aggregate_id="", ordering_key="")))
    assert "ce_subject" not in headers
    assert "ce_partitionkey" not in headers


def test_the_prefix_of_cloud_events_is_the_transports() -> None:
    claim = make_claim(aggregate_id="42", ordering_key="o", tenant_id="acme")
    in_kafka, in_http = (dict(CloudEventHeaders("/s", p)(claim)) for p in ("ce_", "ce-"))
    assert {n.replace("ce_", "ce-"): v for n, v in in_kafka.items()} == in_http
    assert in_http["ce-specversion"] == "1.0"
    assert in_http["ce-subject"] == "42"


def test_debezium_has_one_header_and_none_of_the_applications() -> None:
    claim = make_claim(headers={"region": "eu"}, content_type="text/plain", tenant_id="acme")
    headers = headers_for(FormattedKind(format="Debezium"), "ce_")(claim)
    assert headers == [("id", claim.event_id)]


@pytest.mark.parametrize(
    ("format", "name"), [("Raw", "outbox-event-id"), ("CloudEvents", "x-id"), ("Debezium", "id")]
)
def test_every_format_names_the_event(format: Format, name: str) -> None:
    claim = make_claim()
    headers = headers_for(FormattedKind(format=format), "x-")(claim)
    assert dict(headers)[name] == claim.event_id


@pytest.mark.parametrize(
    "when",
    [
        "0001-01-02T00:00:00.000000Z",
        "1969-12-31T23:59:59.999999Z",
        "2000-01-01T00:00:00.000000Z",
        "9999-12-30T23:59:59.999999Z",
    ],
)
def test_a_time_is_shown_to_the_microsecond_in_every_year(when: str) -> None:
    claim = make_claim(occurred_at=datetime.fromisoformat(when))
    assert dict(raw_headers(claim))["outbox-occurred-at"] == when
    assert utc(claim.happened_at) == when
