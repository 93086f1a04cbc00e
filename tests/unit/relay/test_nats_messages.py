"""From a claim to a NATS message."""

import pytest

from conformance.publisher_contract import make_claim
from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.nats import make, validate
from outbox_relay.publishers.nats.address import address_of
from outbox_relay.publishers.nats.connection import Reply
from outbox_relay.publishers.nats.errors import Problem
from outbox_relay.publishers.nats.login import crc16, public_nkey
from outbox_relay.publishers.nats.messages import Message, Messages, illegal_subject
from outbox_relay.publishers.nats.sender import acked_or_problem


def headers(claim: Claim, **settings: object) -> list[str]:
    filled = {"servers": ("nats://unused",), **settings}
    message = Messages(NatsSettings(**filled)).make(claim)  # type: ignore[arg-type]
    assert isinstance(message, Message)
    return message.headers.decode().split("\r\n")


def test_the_events_id_deduplicates_it_unless_that_is_switched_off() -> None:
    claim = make_claim()
    line = f"Nats-Msg-Id: {claim.event_id}"
    assert line in headers(claim)
    assert line not in headers(claim, deduplicate=False)


def test_the_expected_stream_is_a_header() -> None:
    assert "Nats-Expected-Stream: ORDERS" in headers(make_claim(), stream="ORDERS")
    assert not [line for line in headers(make_claim()) if "Expected" in line]


def test_a_header_without_a_value_is_empty() -> None:
    assert "flag: " in headers(make_claim(headers={"flag": None}))


def test_attributes_of_cloudevents_are_percent_encoded_and_other_headers_are_not() -> None:
    claim = make_claim(
        event_type='größe "1" 5%',
        content_type="application/json; charset=utf-8",
        headers={"note": "größe"},
    )
    found = headers(claim, format="CloudEvents", subject="all")
    assert "ce-type: gr%C3%B6%C3%9Fe%20%221%22%205%25" in found
    assert "ce-datacontenttype: application/json;%20charset=utf-8" in found
    assert "content-type: application/json; charset=utf-8" in found
    assert "note: größe" in found


def test_debezium_has_the_id_and_what_the_server_needs() -> None:
    claim = make_claim(headers={"region": "eu"})
    expected = [f"Nats-Msg-Id: {claim.event_id}", f"id: {claim.event_id}", ""]
    assert headers(claim, format="Debezium") == expected


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "a\rb"])
@pytest.mark.parametrize("format", ["Raw", "CloudEvents"])
def test_a_line_break_reaches_no_header(value: str, format: str) -> None:
    messages = Messages(NatsSettings(servers=("nats://x",), format=format))  # type: ignore[arg-type]
    made = messages.make(make_claim(headers={"note": value}))
    assert isinstance(made, Refused)
    assert made.error.code == "INVALID_HEADER"


@pytest.mark.parametrize("subject", ["a", "a.b", "größe", "a-b_c", "a.$b", "a.b*"])
def test_a_legal_subject(subject: str) -> None:
    assert illegal_subject(subject) is None


@pytest.mark.parametrize(
    "subject",
    ["", ".", "a.", ".a", "a b", "a\tb", "a\u00a0b", "a\0b", "*", "a.>", "$SYS.x", "_INBOX"],
)
def test_an_illegal_subject(subject: str) -> None:
    assert illegal_subject(subject)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b"null", b"[" * 200_000, b'{"stream": "S"}', b'{"seq": 5}'),
        *(b'{"seq": %b, "stream": "S"}' % seq for seq in (b"0", b"-1", b"true", b'"5"', b"1.5")),
        *(b'{"seq": 5, "stream": %b}' % stream for stream in (b"7", b'""', b'"\\u0000"')),
        # An error that says nothing, or cannot be read, is an error all the same.
        *(
            b'{"seq": 5, "stream": "S", "error": %b}' % error
            for error in (b"{}", b'"no"', b"null", b'{"err_code": "x"}')
        ),
    ],
)
def test_only_a_stream_and_a_sequence_number_are_an_acknowledgement(body: bytes) -> None:
    assert acked_or_problem(Reply(0, body)) is None
    assert acked_or_problem(None) is None


def test_an_error_has_a_sequence_number_too() -> None:
    body = b'{"error":{"code":503,"err_code":10077,"description":"full"},"stream":"S","seq":0}'
    assert acked_or_problem(Reply(0, body)) == Problem(10077, "full")


def test_a_users_public_nkey_begins_with_u_and_ends_with_its_checksum() -> None:
    assert crc16(b"123456789") == 0x31C3
    assert public_nkey(bytes(32)).startswith("U")
    assert len(public_nkey(bytes(32))) == 56


@pytest.mark.parametrize(
    "server",
    [
        *("nats://h:99999", "nats://h:0", "nats://h:abc", "nats://[::1", "nats://::1:1"),
        *("nats://[1::2::3]", "nats://:4222", "nats://a..b:4222", f"tls://{'a' * 64}"),
    ],
)
def test_a_server_that_cannot_be_connected_to_is_refused_before(server: str) -> None:
    settings = NatsSettings(servers=("nats://fine", server))
    with pytest.raises(SettingsError, match=r"nats\.servers: ") as caught:
        validate(settings)
    assert repr(server) in str(caught.value)
    with pytest.raises(SettingsError):
        make(settings, True)


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("nats://nats", ("nats", 4222)),
        ("tls://nats-0.nats.svc.:1", ("nats-0.nats.svc.", 1)),
        ("nats://[::1]:65535", ("::1", 65535)),
        ("nats://10.0.0.1:4222", ("10.0.0.1", 4222)),
    ],
)
def test_where_a_server_is(server: str, address: tuple[str, int]) -> None:
    validate(NatsSettings(servers=(server,)))
    assert address_of(server) == address
