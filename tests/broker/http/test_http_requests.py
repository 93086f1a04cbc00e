"""What a request says: headers, signatures, logins, CANON's webhooks, and the check before it."""

import base64
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
from cloudevents.v1.http import from_http
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from broker.http.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services.http import Got, Handler, HttpServer, Misbehave, Reply
from fixtures.certificates import Authority
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_relay.publishers.http.errors import KEPT_BODY_BYTES

pytestmark = pytest.mark.http

SECRETS = ["whsec_" + base64.b64encode(bytes([n]) * 24).decode() for n in range(3)]


def code_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.EVENT
    return outcome.error.code


def test_values_stay_in_their_place_of_the_url(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(http_server.url + "/{event_type}/{aggregate_id}?t={tenant_id}")
    claim = make_claim(event_type="a/b?c", aggregate_id="é #1", tenant_id="x&y=z")
    assert isinstance(publisher.publish([claim])[0], Acked)
    assert http_server.got[0].path == "/a%2Fb%3Fc/%C3%A9%20%231?t=x%26y%3Dz"
    (climbing,) = publisher.publish([claim._replace(aggregate_id="..")])
    assert code_of(climbing) == "INVALID_URL"


def test_headers_cannot_be_smuggled_and_ours_cannot_be_replaced(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(headers={"X-Team": "orders"})
    headers = {
        "note": "a\r\nx-evil: 1",
        "umlaut": "ü",
        "Host": "evil",
        "Content-Length": "0",
        "Transfer-Encoding": "chunked",
        "x-team": "mine",
        "Idempotency-Key": "mine",
        "nothing": None,
    }
    claim = make_claim(b"body", headers, idempotency_key="k-1")
    assert isinstance(publisher.publish([claim])[0], Acked)
    (got,) = http_server.got
    names = [name for name, _ in got.headers]
    assert "x-evil" not in names
    assert "transfer-encoding" not in names
    assert got.header("note") == "a%0D%0Ax-evil: 1"
    assert got.header("umlaut") == "%C3%BC"
    assert got.header("nothing") == ""
    assert (got.header("x-team"), names.count("x-team")) == ("orders", 1)
    assert got.header("idempotency-key") == got.header("x-idempotency-key") == "k-1"
    assert got.body == b"body"
    outcome, fine = publisher.publish([make_claim(b"", {"a b": "c"}), make_claim()])
    assert code_of(outcome) == "INVALID_HEADER"
    assert isinstance(fine, Acked)


def test_another_implementation_verifies_the_signatures_while_secrets_change(
    http_server: HttpServer, make_publisher: MakePublisher, tmp_path: Path
) -> None:
    files = [tmp_path / "old", tmp_path / "new"]
    for file, secret in zip(files, SECRETS, strict=False):
        file.write_text(secret + "\n")
    publisher = make_publisher(signing={"secrets": [{"file": str(f)} for f in files]})
    claim = make_claim(b'{"total": "12 \xe2\x82\xac"}')
    publisher.publish([claim])
    files[0].with_name("next").write_text(SECRETS[2])
    files[0].with_name("next").rename(files[0])
    publisher.publish([make_claim(b"{}")])
    first, second = http_server.got
    assert first.header("webhook-id") == claim.event_id
    for secret in SECRETS[:2]:
        Webhook(secret).verify(first.body, dict(first.headers))
    for secret in SECRETS[1:]:
        Webhook(secret).verify(second.body, dict(second.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS[0]).verify(second.body, dict(second.headers))


@pytest.mark.parametrize("mode", ["Binary", "Structured"])
def test_another_implementation_reads_the_cloud_event(
    http_server: HttpServer, make_publisher: MakePublisher, mode: str
) -> None:
    publisher = make_publisher(format="CloudEvents", cloudEventsMode=mode, source="/shop")
    claim = make_claim(b'{"total": 12}', content_type="application/json", tenant_id='ä "b" 5%')
    assert isinstance(publisher.publish([claim])[0], Acked)
    (got,) = http_server.got
    event = from_http(dict(got.headers), got.body)
    assert (event["id"], event["source"]) == (claim.event_id, "/shop")
    assert event["type"] == "order.created"
    assert event.data == {"total": 12}
    if mode == "Binary":
        assert got.header("ce-tenantid") == "%C3%A4%20%22b%22%205%25"
    else:
        assert event["tenantid"] == 'ä "b" 5%'


def test_logins_are_sent_and_read_again(
    http_server: HttpServer, make_publisher: MakePublisher, tmp_path: Path
) -> None:
    for name in ("token", "user", "password"):
        (tmp_path / name).write_text(name)
    refs = {name: {"file": str(tmp_path / name)} for name in ("token", "user", "password")}
    bearer = make_publisher(auth={"token": refs["token"]})
    bearer.publish([make_claim(b"", {"authorization": "mine"})])
    (tmp_path / "token").write_text("renewed")
    bearer.publish([make_claim()])
    basic = make_publisher(auth={"username": refs["user"], "password": refs["password"]})
    basic.publish([make_claim()])
    assert [[v for n, v in got.headers if n == "authorization"] for got in http_server.got] == [
        ["Bearer token"],
        ["Bearer renewed"],
        ["Basic " + base64.b64encode(b"user:password").decode()],
    ]


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("echo", ["json", "html", "status line", "cut"])
def test_a_receiver_that_repeats_our_secrets_does_not_make_them_known(
    http_server: HttpServer, make_publisher: MakePublisher, tmp_path: Path, status: int, echo: str
) -> None:
    secrets = {"token": "s3cr3t/t0ken", "password": "pa55/word", "signing": SECRETS[0]}
    for name, secret in secrets.items():
        (tmp_path / name).write_text(secret)
    refs = {name: {"file": str(tmp_path / name)} for name in secrets}
    basic = base64.b64encode(b"pa55/word:pa55/word").decode()
    told: list[str] = [*secrets.values(), SECRETS[0].removeprefix("whsec_"), basic]

    def body() -> bytes:
        if echo == "cut":
            return b"x" * (KEPT_BODY_BYTES - 8) + b"s3cr3t/t0ken" + b"x" * 10_000
        if echo == "json":
            return json.dumps([[secret] for secret in told]).replace("/", "\\/").encode()
        return "".join(f"<td>{secret}</td>" for secret in told).encode()

    def write(handler: Handler) -> None:
        handler.wfile.write("".join(told).encode() + b"\r\n\r\n")

    http_server.answer = lambda got: (
        Misbehave(write) if echo == "status line" else Reply(status, body())
    )
    signing = {"secrets": [refs["signing"]]}
    bearer = make_publisher(auth={"token": refs["token"]}, signing=signing)
    both = {"username": refs["password"], "password": refs["password"]}
    texts = []
    for publisher in (bearer, make_publisher(auth=both, signing=signing)):
        (outcome,) = publisher.publish([make_claim()])
        assert not isinstance(outcome, Unsent)
        texts.append(outcome.result if isinstance(outcome, Acked) else outcome.error.text)
    assert "s3cr3t" not in texts[0]
    assert "pa55" not in texts[1]
    assert basic not in texts[1]
    for text in texts:
        assert SECRETS[0].removeprefix("whsec_") not in text
        assert "***" in text or echo == "cut"


@pytest.mark.parametrize("said", [b"", b"you sent "], ids=["alone", "after more"])
@pytest.mark.parametrize("status", [200, 401])
def test_a_connection_that_is_lost_within_a_secret_does_not_make_its_beginning_known(
    http_server: HttpServer, make_publisher: MakePublisher, tmp_path: Path, status: int, said: bytes
) -> None:
    def write(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 %d X\r\ncontent-length: 99\r\n\r\n" % status)
        handler.wfile.write(said + b"s3cr3t/t0")

    (tmp_path / "token").write_text("s3cr3t/t0ken")
    http_server.answer = lambda got: Misbehave(write)
    publisher = make_publisher(auth={"token": {"file": str(tmp_path / "token")}})
    (outcome,) = publisher.publish([make_claim()])
    assert not isinstance(outcome, Unsent)
    text = outcome.result if isinstance(outcome, Acked) else outcome.error.text
    assert text.endswith(said.decode() + "***")
    assert "s3cr3t" not in text


def test_an_error_that_is_cut_within_a_secret_does_not_make_its_beginning_known(
    http_server: HttpServer, make_publisher: MakePublisher, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cr3t/t0ken")
    # Wherever the end of what is kept of an error is, it is within one of these.
    for before in range(len("s3cr3t/t0ken")):
        line = "x" * before + "s3cr3t/t0ken" * 100 + "\r\n\r\n"

        def write(handler: Handler, line: str = line) -> None:
            handler.wfile.write(line.encode())

        http_server.answer = lambda got, write=write: Misbehave(write)  # type: ignore[misc]
        publisher = make_publisher(auth={"token": {"file": str(tmp_path / "token")}})
        (outcome,) = publisher.publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.error.code == "BAD_ANSWER"
        assert "***" in outcome.error.text
        assert "s3cr" not in outcome.error.text


@pytest.mark.parametrize(
    ("known", "changed"),
    [
        (b"abc", b"abc\xff"),
        (b"abc", b""),
        (b"abc", b"abc\r\nx-evil: 1"),
        (SECRETS[0].encode(), b"\xff"),
        (SECRETS[0].encode(), "whsec_é".encode()),
        (SECRETS[0].encode(), b""),
    ],
)
def test_a_secret_that_becomes_unusable_leaves_the_known_one_in_use(
    http_server: HttpServer,
    make_publisher: MakePublisher,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    known: bytes,
    changed: bytes,
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(known)
    ref = {"file": str(file)}
    ways: list[dict[str, Any]] = [
        {"signing": {"secrets": [ref]}} if known.startswith(b"whsec_") else {"auth": {"token": ref}}
    ]
    if not known.startswith(b"whsec_") and b"\r" not in changed:
        ways.append({"auth": {"username": ref, "password": ref}})
    publishers = [make_publisher(**way) for way in ways]
    file.write_bytes(changed)
    for publisher in publishers:
        http_server.got.clear()
        (outcome,) = publisher.publish([make_claim()])
        assert isinstance(outcome, Acked)
        (got,) = http_server.got
        if known.startswith(b"whsec_"):
            Webhook(known.decode()).verify(got.body, dict(got.headers))
        else:
            expected = ("Bearer abc", "Basic " + base64.b64encode(b"abc:abc").decode())
            assert got.header("authorization") in expected
    assert "a changed secret is not used yet" in caplog.text
    assert "abc" not in caplog.text


def test_half_a_character_in_the_key_of_a_check_is_the_fault_of_its_event(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(
        check={"url": http_server.url + "/seen/{idempotency_key}"},
        request="SorUpdate",
        method="PUT",
    )
    change = {"entity_type": "a", "entity_id": "b", "change": 1, "idempotency_key": "\ud800"}
    (outcome,) = publisher.publish([make_claim(json.dumps(change).encode(), attempts=2)])
    assert code_of(outcome) == "INVALID_PAYLOAD"


def test_ce_32_ce_25_a_webhook_call_is_what_its_payload_describes(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(
        request="Payload", allowedHosts=["127.0.0.1"], allowedNetworks=["127.0.0.0/8"]
    )
    call = {
        "url": f"{http_server.url}/webhooks/order-updated",
        "method": "PUT",
        "headers": {"Authorization": "Bearer t"},
        "body": {"order_id": "order-123", "status": "SHIPPED"},
        "idempotency_key": "run-456-webhook-order-123",
    }
    (outcome,) = publisher.publish([make_claim(json.dumps(call).encode())])
    assert isinstance(outcome, Acked)
    (got,) = http_server.got
    assert (got.method, got.path) == ("PUT", "/webhooks/order-updated")
    assert json.loads(got.body) == call["body"]
    assert got.header("authorization") == "Bearer t"
    assert got.header("content-type") == "application/json"
    assert got.header("x-idempotency-key") == "run-456-webhook-order-123"
    bad = [
        (b"no json", "INVALID_PAYLOAD"),
        (b"[]", "INVALID_PAYLOAD"),
        (b"{}", "INVALID_PAYLOAD"),
        (json.dumps({**call, "method": "DELETE"}).encode(), "INVALID_PAYLOAD"),
        (json.dumps({**call, "headers": {"a\r\n": "b"}}).encode(), "INVALID_HEADER"),
        (json.dumps({**call, "headers": {"a": "\ud800"}}).encode(), "INVALID_HEADER"),
        (json.dumps({**call, "url": "ftp://127.0.0.1/"}).encode(), "INVALID_URL"),
        (json.dumps({**call, "url": "http://user:pw@127.0.0.1/"}).encode(), "INVALID_URL"),
        (json.dumps({**call, "url": "http://localhost:1/"}).encode(), "BLOCKED"),
        (json.dumps({**call, "url": "http://169.254.169.254/"}).encode(), "BLOCKED"),
        (json.dumps({**call, "url": "http://10.0.0.1/"}).encode(), "BLOCKED"),
        (json.dumps({**call, "url": "http://[::1]/"}).encode(), "BLOCKED"),
    ]
    outcomes = publisher.publish([make_claim(payload) for payload, _ in bad])
    assert [code_of(o) for o in outcomes] == [code for _, code in bad]
    assert len(http_server.got) == 1


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_what_is_no_number_of_json_is_never_sent_as_one(
    http_server: HttpServer, make_publisher: MakePublisher, number: bytes
) -> None:
    publisher = make_publisher(
        request="Payload", allowedHosts=["127.0.0.1"], allowedNetworks=["127.0.0.0/8"]
    )
    call = b'{"url": "%b/", "body": {"total": %b}}' % (http_server.url.encode(), number)
    (outcome,) = publisher.publish([make_claim(call)])
    assert code_of(outcome) == "INVALID_PAYLOAD"
    assert isinstance(outcome, Refused)
    assert number.decode() in outcome.error.text
    assert http_server.got == []
    structured = make_publisher(format="CloudEvents", cloudEventsMode="Structured")
    structured.publish([make_claim(number, content_type=None)])
    (got,) = http_server.got

    def fail(text: str) -> None:
        raise AssertionError(text)

    json.loads(got.body, parse_constant=fail)


DIGITS = '{"a, \\"}": [12345678901234567.8900, "gr\u00fcn\\ud800"]}'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_no_digit_of_a_number_is_lost(
    http_server: HttpServer, make_publisher: MakePublisher, encoding: str
) -> None:
    url = f'"url": "{http_server.url}/", "entity_type": "a", "entity_id": "b"'
    more = f'"evidence_pack": {DIGITS}'
    payload = f' {{ {url} ,"body" :1, "body" :\n{DIGITS} , "change": {DIGITS}, {more}}} '.encode(
        encoding
    )
    publisher = make_publisher(
        request="Payload", allowedHosts=["127.0.0.1"], allowedNetworks=["127.0.0.0/8"]
    )
    assert isinstance(publisher.publish([make_claim(payload)])[0], Acked)
    assert http_server.got[0].body == DIGITS.encode()
    publisher = make_publisher(request="SorUpdate", method="PUT")
    assert isinstance(publisher.publish([make_claim(payload)])[0], Acked)
    assert f'"change":{DIGITS},"evidence":{DIGITS}}}'.encode() in http_server.got[1].body
    assert json.loads(http_server.got[1].body)["change"] == json.loads(DIGITS)


def test_a_payload_nested_too_deeply_fails_alone(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    """Somewhere on the way down, it can still be read and no longer be written."""
    publisher = make_publisher(request="SorUpdate", method="PUT")
    deepest = sys.getrecursionlimit() + 10
    payload = b'{"entity_type": "a", "entity_id": "b", "change": %s}'
    batch = [
        make_claim(payload % (b"[" * depth + b"]" * depth))
        for depth in (1, *range(deepest - 120, deepest), 100_000)
    ]
    outcomes = publisher.publish(batch)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert isinstance(outcomes[0], Acked)
    assert outcomes[-len(refused) :] == refused
    assert {code_of(outcome) for outcome in refused} == {"INVALID_PAYLOAD"}
    assert {outcome.error.text for outcome in refused} == {"the payload is nested too deeply"}


def test_ce_24_what_may_have_arrived_is_asked_about_only_before_a_second_attempt(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    asked: list[str] = []
    status = 404

    def answer(got: Got) -> Reply:
        if got.method != "GET":
            return Reply()
        asked.append(got.path)
        return Reply(status, b"seen")

    http_server.answer = answer
    publisher = make_publisher(check={"url": http_server.url + "/seen/{idempotency_key}"})
    claim = make_claim(idempotency_key="a/b")
    assert isinstance(publisher.publish([claim])[0], Acked)
    assert (asked, len(http_server.got)) == ([], 1)
    again = claim._replace(attempts=2)
    assert isinstance(publisher.publish([again])[0], Acked)
    assert (asked, len(http_server.got)) == (["/seen/a%2Fb"], 2)
    status = 200
    (outcome,) = publisher.publish([again])
    assert isinstance(outcome, Acked)
    assert outcome.result == "the check found it already there: 200 seen"
    status = 500
    (outcome,) = publisher.publish([again])
    assert isinstance(outcome, Refused)
    assert (outcome.error.kind, outcome.error.code) == (ErrorClass.TRANSIENT, "CHECK_500")
    assert len(http_server.got) == 2


def test_a_replay_of_what_was_published_is_sent_whatever_the_check_would_say(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    asked: list[str] = []

    def answer(got: Got) -> Reply:
        asked.append(got.method)
        return Reply()

    http_server.answer = answer
    publisher = make_publisher(check={"url": http_server.url + "/seen/{idempotency_key}"})
    replayed = make_claim(attempts=3, attempts_base=1, was_published=True)
    assert publisher.publish([replayed]) == [Acked("200 ok")]
    assert asked == ["POST"]


def test_tls_is_verified_by_name_and_may_be_mutual(
    make_publisher: MakePublisher, tmp_path: Path
) -> None:
    ours, others = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "others", "others")
    issued, client = ours.issue("server", "localhost"), ours.issue("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)
    context.load_verify_locations(ours.cert)
    context.verify_mode = ssl.CERT_REQUIRED
    mutual = {"certFile": str(client.cert), "keyFile": str(client.key)}
    with HttpServer(context) as server:
        right, wrong = (f"https://{host}:{server.port}/" for host in ("localhost", "127.0.0.1"))
        good = make_publisher(right, tls={"caFile": str(ours.cert), **mutual})
        for _ in range(2):
            assert isinstance(good.publish([make_claim(), make_claim()])[0], Acked)
        for url, tls in (
            (wrong, {"caFile": str(ours.cert), **mutual}),
            (right, {"caFile": str(others.cert), **mutual}),
            (right, {"caFile": str(ours.cert)}),
        ):
            (outcome,) = make_publisher(url, tls=tls).publish([make_claim()])
            assert isinstance(outcome, Refused)
            assert outcome.error.kind is ErrorClass.OUTAGE
        assert len(server.got) == 4
