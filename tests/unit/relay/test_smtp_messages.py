"""What an event must say to become a message, and the message that it becomes."""

import email
import json
import re
from base64 import b64encode
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.policy import default
from email.utils import parseaddr
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from conformance.publisher_contract import make_claim
from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.model.attempt import ErrorClass, Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.smtp.messages import Letter, Letters
from outbox_relay.publishers.smtp.mime import Field, Part, finished, make_field
from outbox_relay.publishers.smtp.payload import Unfit

NEEDED: dict[str, Any] = {
    "host": "mail",
    "sender": "shop@example.com",
    "allowed_recipient_domains": ("example.com", "*.example.org"),
}
GOOD: dict[str, Any] = {"to": "a@example.com", "subject": "Hi", "body_text": "Hello"}


def claim_of(**fields: Any) -> Claim:
    payload = {name: value for name, value in {**GOOD, **fields}.items() if value is not None}
    return make_claim(json.dumps(payload).encode())


def written(claim: Claim, **settings: Any) -> Letter:
    found = Letters(SmtpSettings(**NEEDED | settings))(claim)
    assert isinstance(found, Letter), found
    return found


def read(letter: Letter) -> EmailMessage:
    return email.message_from_bytes(letter.content, policy=default)


def read_name(letter: Letter) -> str:
    """Of the first recipient. The newer parser of Python keeps the spaces between encoded words."""
    raw = email.message_from_bytes(letter.content)["To"].replace("\r\n", "")
    return str(make_header(decode_header(parseaddr(raw)[0])))


def code(claim: Claim, **settings: Any) -> str:
    found = Letters(SmtpSettings(**NEEDED | settings))(claim)
    assert isinstance(found, Refused), found
    assert found.error.kind is ErrorClass.EVENT
    return found.error.code


def test_ce_33_ce_25_the_canonical_event_is_a_message() -> None:
    payload = {
        "to": ["customer@example.com"],
        "subject": "Order Confirmation",
        "body_html": "<p>Your order has been confirmed.</p>",
        "idempotency_key": "run-456-email-order-123",
    }
    claim = make_claim(json.dumps(payload).encode())
    letter = written(claim)
    message = read(letter)
    assert letter.sender == "shop@example.com"
    assert letter.recipients == ["customer@example.com"]
    assert message["Subject"] == "Order Confirmation"
    assert message["Message-ID"] == f"<{claim.event_id}@example.com>"
    assert message["X-Idempotency-Key"] == "run-456-email-order-123"
    assert message.get_content_type() == "text/html"
    assert message.get_content().strip() == payload["body_html"]


def test_everything_that_a_payload_may_say() -> None:
    letter = written(
        claim_of(
            to=["a@example.com", "Jörg Müller <b@example.com>"],
            cc="c@sub.example.org",
            bcc=["zoe@example.com", "a@example.com"],
            subject="Grüße",
            body_html="<b>Hällo</b>",
            reply_to='"Help, please" <help@elsewhere.net>',
            headers={"X-Campaign": "täglich", "List-Unsubscribe": "<https://example.com/u>"},
            attachments=[
                {
                    "filename": "rechnung ä.pdf",
                    "content_type": "application/pdf",
                    "content_base64": b64encode(b"%PDF\x00\xff").decode(),
                }
            ],
        )
    )
    message = read(letter)
    assert letter.recipients == [
        "a@example.com",
        "b@example.com",
        "c@sub.example.org",
        "zoe@example.com",
    ]
    assert b"zoe@example.com" not in letter.content
    assert message["Bcc"] is None
    assert message["To"].addresses[1].display_name == "Jörg Müller"
    assert message["Reply-To"].addresses[0].display_name == "Help, please"
    assert message["Subject"] == "Grüße"
    assert message["X-Campaign"] == "täglich"
    body, html = message.get_body(("plain",)), message.get_body(("html",))
    assert body is not None
    assert html is not None
    assert body.get_content().strip() == "Hello"
    assert html.get_content().strip() == "<b>Hällo</b>"
    (attached,) = message.iter_attachments()
    assert attached.get_filename() == "rechnung ä.pdf"
    assert attached.get_content() == b"%PDF\x00\xff"
    assert letter.content.isascii()


def test_every_attempt_sends_the_same_bytes() -> None:
    claim = claim_of(
        body_html="<p>x</p>", attachments=[{"filename": "a", "content_base64": "eA=="}]
    )
    first, second = written(claim), written(claim._replace(attempts=2, token=7))
    assert first.data == second.data


def test_to_nobody_but_bcc_names_nobody() -> None:
    letter = written(claim_of(to=None, bcc="hidden@example.com"))
    assert letter.recipients == ["hidden@example.com"]
    assert b"hidden" not in letter.content


def test_a_line_with_a_dot_alone_does_not_end_the_message() -> None:
    data = written(claim_of(body_text="one\n.\n..two\n")).data
    assert b"\r\n..\r\n...two\r\n" in data
    assert data.count(b"\r\n.\r\n") == 1
    assert data.endswith(b"\r\n.\r\n")


BREAKS = ["\r\n", "\n", "\r", "\x00", "\x0b", "\x0c", "\x1b", "\x7f", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("breaks", BREAKS, ids=ascii)
@pytest.mark.parametrize(
    "place", ["subject", "to", "cc", "bcc", "from", "reply_to", "name", "value", "file", "key"]
)
def test_a_line_break_in_a_header_is_refused(place: str, breaks: str) -> None:
    evil = f"a{breaks}Bcc: victim@example.com"
    special: dict[str, dict[str, Any]] = {
        "name": {"headers": {f"X-{evil}": "x"}},
        "value": {"headers": {"X-A": evil}},
        "file": {"attachments": [{"filename": evil, "content_base64": ""}]},
        "key": {"idempotency_key": evil},
    }
    fields = special.get(place, {place: evil if place == "subject" else f"{evil}@example.com"})
    assert code(claim_of(**fields), allow_sender_from_event=True) == "HEADER_INJECTION"


def encoded(text: str) -> str:
    """As mail has it in headers: Python's email package decodes it, also when it writes."""
    return f"=?utf-8?b?{b64encode(text.encode()).decode()}?="


WORDS = [
    encoded("x\r\nReply-To: evil@example.net\r\n\r\n<b>pay here</b>"),
    encoded("x\nReply-To: evil@example.net"),
    encoded("x\r.\r\nMAIL FROM:<ceo@example.com>\r\n"),
    f"before {encoded('x' + chr(13) + 'y')} after",
    "=?utf-8?q?x=0D=0AReply-To:_evil=40example=2Enet?=",
    "=?utf-8?q?evil=40evil=2Ecom=3E=2C_=3Cx=40y=2Ecom?=",
]
OURS = ["From", "To", "Subject", "Date", "Message-ID", "X-Outbox-Event-Id", "X-Idempotency-Key",
        "Auto-Submitted", "X-A", "MIME-Version", "Content-Type"]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("place", ["subject", "name", "value", "file", "key", "claims key"])
def test_an_encoded_word_of_the_events_own_is_text_and_breaks_no_line(
    place: str, word: str
) -> None:
    letter = written(
        claim_of(
            subject=word if place == "subject" else "Hi",
            to=f'"{word}" <a@example.com>' if place == "name" else "A <a@example.com>",
            headers={"X-A": word if place == "value" else "x"},
            attachments=[{"filename": word if place == "file" else "f", "content_base64": "eA=="}],
            idempotency_key=word if place == "key" else None,
        )._replace(idempotency_key=word if place == "claims key" else "k")
    )
    rest = letter.content.replace(b"\r\n", b"")
    assert b"\r" not in rest
    assert b"\n" not in rest
    message = read(letter)
    assert message.keys() == OURS
    (recipient,) = message["To"].addresses
    assert recipient.addr_spec == "a@example.com"
    (attached,) = message.iter_attachments()
    assert attached.keys() == ["Content-Type", "Content-Transfer-Encoding", "Content-Disposition"]
    assert [part.get_content_type() for part in message.walk()] == [
        "multipart/mixed", "text/plain", "application/octet-stream"
    ]  # fmt: skip
    found = {
        "subject": message["Subject"],
        "name": read_name(letter),
        "value": message["X-A"],
        "file": attached.get_filename(),
        "key": message["X-Idempotency-Key"],
        "claims key": message["X-Idempotency-Key"],
    }
    assert found[place] == word  # it reads as it was written


@pytest.mark.parametrize("field", ["to", "cc", "bcc", "from", "reply_to"])
def test_an_encoded_word_in_an_address_is_refused(field: str) -> None:
    evil = "=?utf-8?q?x=0D=0ADATA?=@example.com"
    for text in (evil, f"A <{evil}>"):
        assert code(claim_of(**{field: text}), allow_sender_from_event=True) == "HEADER_INJECTION"


@pytest.mark.parametrize("length", [1, 60, 61, 900, 1990])
@pytest.mark.parametrize("letters", ["x", "ж", "x  y", "a b", 'a"b', "a'%;"])
def test_long_values_read_as_they_were_written(letters: str, length: int) -> None:
    value = (letters * length)[:length].strip()
    name = value.replace('"', "")[:1900]
    letter = written(
        claim_of(
            subject=value,
            to=f'"{name}" <a@example.com>',
            attachments=[{"filename": value, "content_base64": ""}],
        )
    )
    message = read(letter)
    assert message["Subject"] == value
    assert [a.addr_spec for a in message["To"].addresses] == ["a@example.com"]
    assert read_name(letter) == name
    assert [part.get_filename() for part in message.iter_attachments()] == [value]
    assert max(map(len, letter.content.split(b"\r\n"))) <= 998
    assert not re.search(rb"\r\n +\r\n", letter.content)


@pytest.mark.parametrize(
    "message",
    [
        Part((Field("A", b"A: b\r\nB: c\r\n"),), b""),
        Part((Field("A", b"A: b\r\n\r\nB: c\r\n"), Field("B", b"B: c\r\n")), b""),
        Part((Field("A", b"A: b\n"),), b""),
        Part((Field("A", b"A: b\r\n"),), b"a\r.\r\n"),
        Part((Field("A", b"A: b\r\n"),), b"a\nb\r\n"),
        Part((Field("A", b"A: b\r\n"),), b"\xff\r\n"),
    ],
)
def test_a_finished_message_is_looked_at_again(message: Part) -> None:
    with pytest.raises(Unfit) as caught:
        finished(message)
    assert caught.value.code == "HEADER_INJECTION"


@pytest.mark.parametrize("tokens", [("a\r\nB: c",), ("a", "\nb"), ("a\r",), ("x" * 999,), ("\0",)])
def test_a_header_is_one_header_or_none(tokens: tuple[str, ...]) -> None:
    with pytest.raises(Unfit):
        make_field("A", *tokens)


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("where", ["body_text", "body_html"])
def test_a_text_that_knows_the_boundary_adds_no_part(where: str, attached: bool) -> None:
    claim = claim_of()
    breaks = "".join(
        f"\n--=_{claim.event_id}.{n}\nContent-Type: text/html\n\nevil\n" for n in range(3)
    )
    fields = {"body_text": "Hi\n", "body_html": "<p>Hi</p>\n"}
    fields[where] += breaks
    files = [{"filename": "f", "content_base64": "eA=="}] if attached else []
    payload = json.dumps({**GOOD, **fields, "attachments": files}).encode()
    message = read(written(claim._replace(payload=payload)))
    kinds = [part.get_content_type() for part in message.walk()]
    mixed = ["multipart/mixed"], ["application/octet-stream"]
    before, after = mixed if attached else ([], [])
    assert kinds == [*before, "multipart/alternative", "text/plain", "text/html", *after]
    body = message.get_body(("plain" if where == "body_text" else "html",))
    assert body is not None
    assert body.get_content().splitlines() == fields[where].splitlines()


@given(st.text(max_size=200), st.text(max_size=80), st.text(max_size=300))
def test_whatever_the_texts_are_there_is_no_header_of_the_events_own(
    subject: str, name: str, body: str
) -> None:
    found = Letters(SmtpSettings(**NEEDED))(
        claim_of(subject=subject, to=f"{name} <a@example.com>", body_text=body)
    )
    if isinstance(found, Refused):
        assert found.error.kind is ErrorClass.EVENT
        return
    assert set(read(found).keys()) == {
        "From", "To", "Subject", "Date", "Message-ID", "X-Outbox-Event-Id", "Auto-Submitted",
        "Content-Type", "Content-Transfer-Encoding", "MIME-Version",
    }  # fmt: skip
    assert found.recipients == ["a@example.com"]
    assert found.data.count(b"\r\n.\r\n") == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"to": "a@elsewhere.net"}, "RECIPIENT_NOT_ALLOWED"),
        ({"cc": "a@example.org"}, "RECIPIENT_NOT_ALLOWED"),
        ({"bcc": "a@notexample.com"}, "RECIPIENT_NOT_ALLOWED"),
        ({"bcc": "a@example.com.elsewhere.net"}, "RECIPIENT_NOT_ALLOWED"),
        ({"to": [f"a{n}@example.com" for n in range(51)]}, "TOO_MANY_RECIPIENTS"),
        ({"to": None}, "NO_RECIPIENT"),
        ({"to": []}, "NO_RECIPIENT"),
        ({"to": ""}, "INVALID_ADDRESS"),
        ({"to": "a"}, "INVALID_ADDRESS"),
        ({"to": "a@example.com,b@example.com"}, "INVALID_ADDRESS"),
        ({"to": "a@example.com> SIZE=1"}, "INVALID_ADDRESS"),
        ({"to": "<a@example.com> <b@example.com>"}, "INVALID_ADDRESS"),
        ({"to": ".a@example.com"}, "INVALID_ADDRESS"),
        ({"to": "ä@example.com"}, "INVALID_ADDRESS"),
        ({"to": 7}, "INVALID_PAYLOAD"),
        ({"to": [["a@example.com"]]}, "INVALID_PAYLOAD"),
        ({"from": "boss@example.com"}, "SENDER_NOT_ALLOWED"),
        ({"from": ["a@example.com", "b@example.com"]}, "INVALID_PAYLOAD"),
        ({"body_text": None}, "INVALID_PAYLOAD"),
        ({"body": "x"}, "INVALID_PAYLOAD"),
        ({"body_html": 7}, "INVALID_PAYLOAD"),
        ({"body_html": "\ud800"}, "INVALID_PAYLOAD"),
        ({"subject": "x" * 2001}, "INVALID_PAYLOAD"),
        ({"headers": {"Bcc": "x@example.com"}}, "INVALID_HEADER"),
        ({"headers": {"content-type": "text/html"}}, "INVALID_HEADER"),
        ({"headers": {"X Y": "z"}}, "INVALID_HEADER"),
        ({"headers": {f"X-{n}": "z" for n in range(51)}}, "INVALID_PAYLOAD"),
        ({"attachement": []}, "UNKNOWN_FIELD"),
        ({"attachments": [{"filename": "x", "content_base64": "%"}]}, "INVALID_ATTACHMENT"),
        ({"attachments": [{"filename": "x", "content": "eA=="}]}, "UNKNOWN_FIELD"),
        ({"attachments": [{"filename": "x"}]}, "INVALID_ATTACHMENT"),
        ({"attachments": [{"content_base64": ""}]}, "INVALID_PAYLOAD"),
        (
            {
                "attachments": [
                    {"filename": "x", "content_type": "message/rfc822", "content_base64": ""}
                ]
            },
            "INVALID_ATTACHMENT",
        ),
    ],
)
def test_what_is_no_message_is_refused_with_a_code(fields: dict[str, Any], expected: str) -> None:
    assert code(claim_of(**fields)) == expected


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(payload: bytes) -> None:
    assert code(make_claim(payload)) == "INVALID_PAYLOAD"


def test_a_message_that_is_too_large_is_refused() -> None:
    assert code(claim_of(body_text="x" * 2000), max_message_bytes=1000) == "MESSAGE_TOO_LARGE"


def test_an_event_may_name_its_sender_where_the_resource_allows_it() -> None:
    letter = written(claim_of(**{"from": "Boss <boss@example.com>"}), allow_sender_from_event=True)
    assert letter.sender == "boss@example.com"
    assert letter.sender_from_event
    assert read(letter)["From"] == "Boss <boss@example.com>"
    assert written(claim_of(**{"from": "Shop <SHOP@example.com>"})).sender == "SHOP@example.com"


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_recipient_domains": ()},
        {"sender": "nobody"},
        {"sender": "a@b\nBcc: c"},
        {"allowed_recipient_domains": ("a b",)},
        {"start_tls": "None", "tls": {}},
        {"start_tls": "None", "username": {"env": "X"}, "password": {"env": "X"}},
        {"username": {"env": "X"}},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SmtpSettings(**NEEDED | settings)


def test_events_cannot_be_ordered() -> None:
    assert not SmtpSettings(**NEEDED).holds_order
