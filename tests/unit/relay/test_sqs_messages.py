"""From a claim to an entry of SQS: queue, body, attributes, group."""

import json
from typing import Any

import pytest

from conformance.publisher_contract import make_claim
from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.contract.values import SecretRef
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import ErrorClass, Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers import sqs
from outbox_relay.publishers.sqs.endpoint import endpoint_of, region_of
from outbox_relay.publishers.sqs.messages import Entry, Messages

HOST = "https://sqs.eu-west-1.amazonaws.com/123456789012"


def entry(claim: Claim, queue: str = "orders", **settings: Any) -> Entry:
    made = Messages(SqsSettings(queue_url=f"{HOST}/{queue}", **settings)).make(claim)
    assert isinstance(made, Entry)
    return made


def refusal(claim: Claim, queue: str = "orders", **settings: Any) -> Refused:
    made = Messages(SqsSettings(queue_url=f"{HOST}/{queue}", **settings)).make(claim)
    assert isinstance(made, Refused)
    assert made.error.kind is ErrorClass.EVENT
    return made


def attributes(claim: Claim, **settings: Any) -> dict[str, str]:
    found = entry(claim, **settings).fields["MessageAttributes"]
    return {name: value["StringValue"] for name, value in found.items() if "StringValue" in value}


def packed(claim: Claim) -> list[list[str | None]]:
    found: list[list[str | None]] = json.loads(attributes(claim)["outbox-headers"])
    return found


def test_a_few_headers_are_attributes_of_their_own() -> None:
    claim = make_claim(headers={"region": "eu"}, content_type="application/json")
    found = attributes(claim)
    assert set(found) == {
        *("outbox-event-id", "outbox-event-type", "outbox-attempt", "outbox-created-at"),
        *("region", "content-type"),
    }
    assert found["outbox-event-id"] == claim.event_id


def test_ten_headers_are_ten_attributes() -> None:
    found = attributes(make_claim(headers={f"h{n}": "v" for n in range(6)}))
    assert len(found) == 10
    assert "outbox-headers" not in found


def test_of_more_than_ten_the_applications_come_before_ours_except_id_and_type() -> None:
    claim = make_claim(headers={f"h{n}": "v" for n in range(7)})
    found = attributes(claim)
    assert len(found) == 10
    assert {f"h{n}" for n in range(7)} < set(found)
    assert found["outbox-event-type"] == "order.created"
    assert [name for name, _ in packed(claim)] == ["outbox-attempt", "outbox-created-at"]


def test_many_headers_of_the_application_keep_their_order() -> None:
    claim = make_claim(headers={f"h{n}": "v" for n in range(20)})
    assert [name for name, _ in packed(claim)][:13] == [f"h{n}" for n in range(7, 20)]
    assert len(attributes(claim)) == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("empty", ""),
        ("null", None),
        ("control", "a\x01b"),
        ("not a name", "v"),
        ("dots..twice", "v"),
        ("dot.", "v"),
        ("AWS.mine", "v"),
        ("amazon.mine", "v"),
        ("ümlaut", "v"),
        ("n" * 257, "v"),
        ("outbox-payload", "v"),
        ("outbox-headers", "v"),
        ("", "v"),
    ],
)
def test_what_cannot_be_an_attribute_is_packed(name: str, value: str | None) -> None:
    assert packed(make_claim(headers={name: value})) == [[name, value]]


def test_a_name_that_occurs_twice_is_packed_twice() -> None:
    claim = make_claim(headers=[("tag", "a"), ("tag", "b")])
    assert packed(claim) == [["tag", "a"], ["tag", "b"]]
    assert "tag" not in attributes(claim)


def test_the_event_id_is_the_relays_word() -> None:
    claim = make_claim(headers={"outbox-event-id": "mine"})
    assert attributes(claim)["outbox-event-id"] == claim.event_id
    assert packed(claim) == [["outbox-event-id", "mine"]]


def test_cloudevents_have_their_required_attributes_whatever_else_there_is() -> None:
    claim = make_claim(headers={f"h{n}": "v" for n in range(20)})
    found = attributes(claim, format="CloudEvents", source="/shop")
    assert found["ce-specversion"] == "1.0"
    assert found["ce-id"] == claim.event_id
    assert found["ce-source"] == "/shop"
    assert found["ce-type"] == "order.created"


def test_debezium_has_the_id_alone() -> None:
    claim = make_claim(headers={"region": "eu"})
    assert attributes(claim, format="Debezium") == {"id": claim.event_id}


@pytest.mark.parametrize("payload", ["{}", "ü\t\n\r", "\U0001f600", "-"])
def test_text_is_the_body(payload: str) -> None:
    made = entry(make_claim(payload.encode()))
    assert made.fields["MessageBody"] == payload
    assert "outbox-payload" not in made.fields["MessageAttributes"]


@pytest.mark.parametrize("payload", [b"", b"\xff", b"a\x00b", "\ufffe".encode(), b"\xed\xa0\x80"])
def test_what_is_not_text_is_an_attribute(payload: bytes) -> None:
    claim = make_claim(payload, headers={f"h{n}": "v" for n in range(9)})
    made = entry(claim).fields
    assert made["MessageBody"] == "-"
    held = made["MessageAttributes"]["outbox-payload"]
    assert held["DataType"] == ("Binary" if payload else "String")
    assert len(made["MessageAttributes"]) == 10


def test_the_size_counts_body_and_attributes_with_names_and_types() -> None:
    size = entry(make_claim("ü".encode()), format="Debezium").size
    assert size == 2 + len("id") + len("String") + 36
    named = entry(make_claim(headers={"colour": "grün"})).size - entry(make_claim()).size
    assert named == len("colour") + len("String") + 5


def test_a_message_may_be_as_large_as_allowed_and_no_larger() -> None:
    rest = len("id") + len("String") + 36
    settings: dict[str, Any] = {"format": "Debezium", "max_message_bytes": 1000}
    assert entry(make_claim(b"x" * (1000 - rest)), **settings).size == 1000
    assert refusal(make_claim(b"x" * (1001 - rest)), **settings).error.code == "MESSAGE_TOO_LARGE"
    binary = rest + len("-") + len("outbox-payload") + len("Binary")
    assert entry(make_claim(b"\xff" * (1000 - binary)), **settings).size == 1000


def test_a_fifo_queue_gets_a_group_and_the_event_id() -> None:
    claim = make_claim(ordering_key="order-7")
    made = entry(claim, "orders.fifo").fields
    assert made["MessageGroupId"] == "order-7"
    assert made["MessageDeduplicationId"] == claim.event_id


def test_a_standard_queue_gets_neither() -> None:
    made = entry(make_claim(ordering_key="order-7")).fields
    assert set(made) == {"MessageBody", "MessageAttributes"}


def test_without_a_key_each_event_is_a_group() -> None:
    claim = make_claim()
    assert entry(claim, "orders.fifo").fields["MessageGroupId"] == claim.event_id


@pytest.mark.parametrize("key", ["a b", "ü", "k" * 129, ""])
def test_a_key_that_is_no_group_is_hashed(key: str) -> None:
    def group(key: str) -> str:
        found: str = entry(make_claim(ordering_key=key), "o.fifo").fields["MessageGroupId"]
        return found

    assert group(key).startswith("sha256-")
    assert group(key) == group(key) != group(key + "x")


def test_dots_in_a_field_become_dashes() -> None:
    made = entry(make_claim(event_type="order.created"), "{event_type}.fifo")
    assert made.queue == f"{HOST}/order-created.fifo"


@pytest.mark.parametrize("event_type", ["a/b", "a b", "ü", "a" * 81, "a?b", "a#b"])
def test_an_event_with_no_legal_queue_is_refused(event_type: str) -> None:
    error = refusal(make_claim(event_type=event_type), "{event_type}").error
    assert error.code == "INVALID_QUEUE_URL"


@pytest.mark.parametrize(
    "url",
    [
        "https://sqs.{tenant_id}.amazonaws.com/1/orders",
        "https://{tenant_id}/1/orders",
        f"{HOST}/{{ordering_key}}",
        f"{HOST}/orders.txt",
        f"{HOST}/",
        "orders",
        "ftp://host/1/orders",
        "https://host:99999/1/orders",
        "https://[::1/1/orders",
        "http://a..b/1/orders",
    ],
)
def test_a_url_that_cannot_work_is_refused_at_once(url: str) -> None:
    with pytest.raises(SettingsError, match="queueUrl"):
        sqs.validate(SqsSettings(queue_url=url))


@pytest.mark.parametrize("url", ["http://h:99999", "http://[::1", "http://a..b"])
def test_an_endpoint_that_nobody_could_connect_to_is_refused_at_once(url: str) -> None:
    with pytest.raises(SettingsError, match="endpoint"):
        sqs.validate(SqsSettings(queue_url=f"{HOST}/orders", endpoint=url))


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.eu-west-1.amazonaws.com", "eu-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("sqs-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.eu-west-1.api.aws", "eu-west-1"),
        ("vpce-0123-abcd.sqs.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
        ("eu-west-1.queue.amazonaws.com", "eu-west-1"),
    ],
)
def test_the_region_is_in_the_host(host: str, region: str) -> None:
    settings = SqsSettings(queue_url=f"https://{host}/123456789012/orders")
    assert region_of(settings) == region
    assert endpoint_of(settings) == f"https://{host}"


def test_the_region_may_be_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SqsSettings(queue_url="http://localhost:9324/queue/orders")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert region_of(settings) == "eu-west-3"
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(SettingsError, match="region"):
        region_of(settings)


def test_half_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="go together"):
        SqsSettings(queue_url=f"{HOST}/orders", access_key_id=SecretRef(env="ID"))


def test_only_fifo_queues_hold_the_order() -> None:
    assert SqsSettings(queue_url=f"{HOST}/orders.fifo").holds_order
    assert not SqsSettings(queue_url=f"{HOST}/orders").holds_order
