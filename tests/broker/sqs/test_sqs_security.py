"""Credentials, signatures, TLS: with answers of our own, because ElasticMQ lets everybody in."""

import hashlib
import hmac
import json
import re
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.session import Session

from broker.sqs.answers import Answering, Asked, answer, answering, done, error
from broker.sqs.conftest import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services.kafka import make_certificates
from outbox_core.errors import BrokerRefused, SettingsError
from outbox_core.model.attempt import Acked, ErrorClass, Refused

pytestmark = pytest.mark.sqs

BY_ITSELF: dict[str, Any] = {"access_key_id": None, "secret_access_key": None}
"""As in a pod: the settings say nothing of credentials."""


def signature_of(asked: Asked, secret: str) -> str:
    """As Amazon computes it, from what arrived."""
    found = re.search(r"Credential=[^/]+/(\S+), SignedHeaders=(\S+), ", asked.authorization)
    assert found
    scope, names = found[1], found[2].split(";")
    headers = "".join(f"{name}:{asked.headers[name]}\n" for name in names)
    method, path, _ = asked.line.split()
    request = "\n".join(
        [method, path, "", headers, ";".join(names), hashlib.sha256(asked.body).hexdigest()]
    )
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            asked.headers["x-amz-date"],
            scope,
            hashlib.sha256(request.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def publish_one(server: Answering, make_publisher: MakePublisher, **settings: Any) -> Asked:
    publisher = make_publisher(server.queue_url(), **settings)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    return server.asked[-1]


def test_a_request_is_signed_as_amazon_demands(make_publisher: MakePublisher) -> None:
    with answering(done) as server:
        asked = publish_one(server, make_publisher)
    today = datetime.now(UTC).strftime("%Y%m%d")
    assert f"Credential=AKIDTEST/{today}/eu-west-1/sqs/aws4_request" in asked.authorization
    assert asked.authorization.endswith(signature_of(asked, "not-to-be-seen"))
    assert b"not-to-be-seen" not in asked.body
    assert "not-to-be-seen" not in str(asked.headers)


def test_a_request_is_the_one_that_amazons_own_client_makes(make_publisher: MakePublisher) -> None:
    claims = [
        make_claim(b'{"n":1}', headers={"region": "eu"}, ordering_key="k"),
        make_claim(b"\xff\x00"),
        make_claim(b""),
    ]
    with answering(done) as server:
        publisher = make_publisher(server.queue_url("orders.fifo"))
        publisher.publish(claims)
        client = Session().create_client(
            "sqs",
            region_name="eu-west-1",
            endpoint_url=server.url,
            aws_access_key_id="AKIDTEST",
            aws_secret_access_key="not-to-be-seen",
            config=Config(retries={"total_max_attempts": 1}),
        )
        entries = json.loads(server.asked[0].body)["Entries"]
        for entry in entries:
            held = entry["MessageAttributes"].get("outbox-payload", {})
            if "BinaryValue" in held:
                held["BinaryValue"] = b"\xff\x00"
        client.send_message_batch(QueueUrl=server.queue_url("orders.fifo"), Entries=entries)
    ours, theirs = server.asked
    assert ours.line == theirs.line
    assert ours.json == theirs.json
    for name in ("content-type", "x-amz-target", "host"):
        assert ours.headers[name] == theirs.headers[name]


def test_without_credentials_events_wait_for_them(
    make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(done) as server:
        publisher = make_publisher(server.queue_url(), **BY_ITSELF)
        (outcome,) = publisher.publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.error.kind is ErrorClass.OUTAGE
        assert outcome.error.code == "NO_CREDENTIALS"
        with pytest.raises(BrokerRefused, match="accessKeyId"):
            publisher.probe()
        assert server.asked == []
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        assert "Credential=AKIDENV/" in server.asked[-1].authorization


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"])
def test_a_key_that_no_header_can_hold_is_in_no_error(
    name: str, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv(name, "never-shown\n")  # as by `echo`
    with answering(done) as server:
        publisher = make_publisher(server.queue_url(), **BY_ITSELF)
        (outcome,) = publisher.publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert (outcome.error.kind, outcome.error.code) == (ErrorClass.OUTAGE, "NO_CREDENTIALS")
        with pytest.raises(BrokerRefused) as raised:
            publisher.probe()
        assert "never-shown" not in f"{outcome} {raised.value}"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "good")
        assert isinstance(publisher.publish([make_claim()])[0], Acked)


def test_a_changed_secret_is_read_after_a_refusal(
    make_publisher: MakePublisher, tmp_path: Path
) -> None:
    key_id, secret = tmp_path / "id", tmp_path / "secret"
    key_id.write_text("AKIDOLD\n")
    secret.write_text("old\n")

    def say(asked: Asked, sock: socket.socket) -> bytes:
        if "AKIDOLD" in asked.authorization:
            return error(403, "InvalidClientTokenId")(asked, sock) or b""
        return done(asked, sock)

    with answering(say) as server:
        publisher = make_publisher(
            server.queue_url(),
            access_key_id={"file": key_id},
            secret_access_key={"file": secret},
        )
        assert isinstance(publisher.publish([make_claim()])[0], Refused)
        key_id.write_text("AKIDNEW\n")
        secret.write_text("new\n")
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        asked = server.asked[-1]
        assert asked.authorization.endswith(signature_of(asked, "new"))


def test_a_secret_that_cannot_be_read_is_no_events_fault(
    make_publisher: MakePublisher, tmp_path: Path
) -> None:
    missing = {"file": tmp_path / "nowhere"}
    publisher = make_publisher(
        "http://127.0.0.1:1/queue/orders", access_key_id=missing, secret_access_key=missing
    )
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert "nowhere" in outcome.error.text


def expiry() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_the_identity_of_a_pod_by_eks_pod_identity(
    make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("the-pods-token")
    given = {
        "AccessKeyId": "ASIAPOD",
        "SecretAccessKey": "of-the-pod",
        "Token": "session",
        "Expiration": expiry(),
    }
    with answering(lambda asked, sock: answer(200, given)) as agent, answering(done) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent.url}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        asked = publish_one(server, make_publisher, **BY_ITSELF)
        assert agent.asked[0].authorization == "the-pods-token"
    assert asked.headers["x-amz-security-token"] == "session"
    assert asked.authorization.endswith(signature_of(asked, "of-the-pod"))


STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIAROLE</AccessKeyId>
<SecretAccessKey>of-the-role</SecretAccessKey><SessionToken>session</SessionToken>
<Expiration>{expiry}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


def test_the_identity_of_a_pod_by_its_service_accounts_role(
    make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("the-service-accounts-token")
    said = answer(200, STS.format(expiry=expiry()).encode(), Content_Type="text/xml")
    with answering(lambda asked, sock: said) as sts, answering(done) as server:
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/orders")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        asked = publish_one(server, make_publisher, **BY_ITSELF)
        assert b"the-service-accounts-token" in sts.asked[0].body
    assert asked.headers["x-amz-security-token"] == "session"
    assert asked.authorization.endswith(signature_of(asked, "of-the-role"))


def test_an_identity_service_that_hangs_does_not_hold_the_call_up(
    make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = threading.Event()

    def hang(asked: Asked, sock: socket.socket) -> None:
        gone.wait(20)

    with answering(hang) as agent, answering(done) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent.url}/v1/credentials")
        publisher = make_publisher(server.queue_url(), timeout=1, **BY_ITSELF)
        begin = time.monotonic()
        (outcome,) = publisher.publish([make_claim()])
        assert time.monotonic() - begin < 2
        assert isinstance(outcome, Refused)
        assert outcome.error.kind is ErrorClass.OUTAGE
        assert server.asked == []
        gone.set()


def test_nothing_is_sent_when_the_keys_are_found_after_the_call_has_ended(
    make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    given = {
        "AccessKeyId": "ASIAPOD",
        "SecretAccessKey": "of-the-pod",
        "Token": "session",
        "Expiration": expiry(),
    }

    def give_late(asked: Asked, sock: socket.socket) -> bytes:
        ended.wait(20)
        return answer(200, given)

    with answering(give_late) as agent, answering(done) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent.url}/v1/credentials")
        publisher = make_publisher(server.queue_url(), timeout=1, **BY_ITSELF)
        assert isinstance(publisher.publish([make_claim()])[0], Refused)
        ended.set()
        publisher._connections._pool.shutdown()  # and waits for the one that has the keys now
        assert len(agent.asked) == 1
        assert server.asked == []


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "tls"
    make_certificates(folder)
    return folder


@pytest.fixture
def tls(certificates: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem")
    return context


def test_tls_with_a_ca_of_ones_own(
    make_publisher: MakePublisher, certificates: Path, tls: ssl.SSLContext
) -> None:
    with answering(done, tls) as server:
        publish_one(server, make_publisher, ca_file=certificates / "ca.pem")


def test_a_certificate_that_nobody_trusts_is_refused_before_anything_is_sent(
    make_publisher: MakePublisher, tls: ssl.SSLContext
) -> None:
    with answering(done, tls) as server:
        publisher = make_publisher(server.queue_url())
        (outcome,) = publisher.publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.error.kind is ErrorClass.OUTAGE
        assert outcome.error.code == "TLS_FAILED"
        with pytest.raises(BrokerRefused, match="certificate"):
            publisher.probe()
        assert server.asked == []


def test_over_tls_a_server_that_hangs_is_given_up_in_time(
    make_publisher: MakePublisher, certificates: Path, tls: ssl.SSLContext
) -> None:
    def drip(asked: Asked, sock: socket.socket) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000:
            sock.sendall(bytes([byte]))
            time.sleep(0.1)  # a slow server, not a wait for something

    with answering(drip, tls) as server:
        begin = time.monotonic()
        publisher = make_publisher(server.queue_url(), timeout=1, ca_file=certificates / "ca.pem")
        (outcome,) = publisher.publish([make_claim()])
        assert time.monotonic() - begin < 2
        assert isinstance(outcome, Refused)


def test_a_ca_that_is_not_there_is_a_wrong_setting(
    make_publisher: MakePublisher, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="caFile"):
        make_publisher("https://127.0.0.1:1/queue/orders", ca_file=tmp_path / "nowhere")
