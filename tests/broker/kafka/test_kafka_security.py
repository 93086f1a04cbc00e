"""TLS and SASL, by password and by token, and that a secret stays one."""

import base64
import json
import logging
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

from broker.kafka.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services import Kafka, SecureListener, wait_until
from fixtures.topics import Consume
from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.publishers.kafka import Sasl
from outbox_core.contract.values import SecretRef
from outbox_core.errors import PublisherError, SettingsError
from outbox_core.model.attempt import Acked, ErrorClass, Refused

pytestmark = pytest.mark.kafka

WRONG = "correct-horse-battery-staple"


@pytest.fixture
def listener(kafka: Kafka) -> SecureListener:
    assert kafka.secure
    return kafka.secure


@pytest.fixture
def password_file(tmp_path: Path, listener: SecureListener) -> Path:
    file = tmp_path / "password"
    file.write_text(listener.password + "\n")
    return file


@pytest.fixture
def sasl(password_file: Path, listener: SecureListener, monkeypatch: pytest.MonkeyPatch) -> Sasl:
    monkeypatch.setenv("KAFKA_USERNAME", listener.username)
    return Sasl(
        mechanism="PLAIN",
        username=SecretRef(env="KAFKA_USERNAME"),
        password=SecretRef(file=password_file),
    )


def test_events_go_through_tls_and_sasl(
    topic: str,
    listener: SecureListener,
    sasl: Sasl,
    make_publisher: MakePublisher,
    consume: Consume,
) -> None:
    publisher = make_publisher(
        topic, bootstrap_servers=listener.bootstrap, tls=Tls(ca_file=listener.ca), sasl=sasl
    )
    publisher.probe()
    assert isinstance(publisher.publish([make_claim(b"secret")])[0], Acked)
    assert [m.value for m in consume(topic, 1)] == [b"secret"]


@pytest.mark.usefixtures("impatient")
def test_oo_27_a_wrong_password_is_an_outage_that_names_the_cause_and_not_the_password(
    topic: str,
    listener: SecureListener,
    sasl: Sasl,
    password_file: Path,
    make_publisher: MakePublisher,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    password_file.write_text(WRONG)
    publisher = make_publisher(
        topic,
        timeout=3,
        bootstrap_servers=listener.bootstrap,
        tls=Tls(ca_file=listener.ca),
        sasl=sasl,
    )
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert "authentication" in outcome.error.text.lower()
    with pytest.raises(PublisherError, match=r"(?i)authentication") as caught:
        publisher.probe()
    told = [
        outcome.error.text,
        caplog.text,
        repr(publisher),
        *traceback.format_exception(caught.value),
    ]
    assert not any(WRONG in text for text in told)


def test_a_password_that_was_corrected_is_used_without_a_restart(
    topic: str,
    listener: SecureListener,
    sasl: Sasl,
    password_file: Path,
    make_publisher: MakePublisher,
) -> None:
    password_file.write_text(WRONG)
    publisher = make_publisher(
        topic,
        timeout=3,
        bootstrap_servers=listener.bootstrap,
        tls=Tls(ca_file=listener.ca),
        sasl=sasl,
    )
    assert not isinstance(publisher.publish([make_claim()])[0], Acked)
    password_file.write_text(listener.password)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)


@pytest.mark.usefixtures("impatient")
def test_a_certificate_that_nobody_trusts_is_named(
    topic: str, listener: SecureListener, sasl: Sasl, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(
        topic, timeout=2, bootstrap_servers=listener.bootstrap, tls=Tls(), sasl=sasl
    )
    with pytest.raises(PublisherError, match=r"(?i)certificate"):
        publisher.probe()


def test_a_missing_secret_is_a_settings_error(
    topic: str,
    listener: SecureListener,
    sasl: Sasl,
    password_file: Path,
    make_publisher: MakePublisher,
) -> None:
    password_file.unlink()
    with pytest.raises(SettingsError, match=r"kafka\.sasl\.password: cannot read"):
        make_publisher(topic, bootstrap_servers=listener.bootstrap, tls=Tls(), sasl=sasl)


def token(life: float) -> str:
    """A JWT that nobody has signed."""
    now = time.time()
    claims = {"sub": "relay", "iat": now - 1000, "exp": now + life}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in parts), ""])


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(token(600) + "\n")
    return file


@pytest.fixture
def bearer(token_file: Path) -> Sasl:
    return Sasl(mechanism="OAUTHBEARER", token=SecretRef(file=token_file))


def test_a_token_from_a_file_opens_the_door(
    topic: str,
    listener: SecureListener,
    bearer: Sasl,
    make_publisher: MakePublisher,
    consume: Consume,
) -> None:
    publisher = make_publisher(
        topic, bootstrap_servers=listener.bootstrap, tls=Tls(ca_file=listener.ca), sasl=bearer
    )
    publisher.probe()
    assert isinstance(publisher.publish([make_claim(b"secret")])[0], Acked)
    assert [m.value for m in consume(topic, 1)] == [b"secret"]
    levels = [result.level for result in publisher.check([{"event_type": "any"}])]
    assert "fail" not in levels


def test_a_token_that_was_renewed_is_used_without_a_restart(
    topic: str,
    listener: SecureListener,
    bearer: Sasl,
    token_file: Path,
    make_publisher: MakePublisher,
) -> None:
    token_file.write_text(expired := token(-100))
    publisher = make_publisher(
        topic,
        timeout=5,
        bootstrap_servers=listener.bootstrap,
        tls=Tls(ca_file=listener.ca),
        sasl=bearer,
    )
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert "invalid_token" in outcome.error.text
    assert expired not in outcome.error.text
    token_file.write_text(token(600))
    assert isinstance(publisher.publish([make_claim()])[0], Acked)


def test_a_token_is_read_again_before_it_expires(
    topic: str,
    listener: SecureListener,
    token_file: Path,
    make_publisher: MakePublisher,
) -> None:
    """By its own word, or by tokenLifetime where it says nothing: a client asks after 8 of 10 s."""
    asked: list[float] = []

    class Watched(SecretRef):
        def read(self, what: str) -> str:
            asked.append(time.monotonic())
            return super().read(what)

    watched = Sasl(
        mechanism="OAUTHBEARER",
        token=Watched(file=token_file),
        token_lifetime=timedelta(seconds=10),
    )
    token_file.write_text(token(10))
    publisher = make_publisher(
        topic, bootstrap_servers=listener.bootstrap, tls=Tls(ca_file=listener.ca), sasl=watched
    )
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    first = asked[-1]
    token_file.write_text(token(600))

    def is_asked() -> bool:
        assert isinstance(publisher.publish([make_claim()])[0], Acked)
        return asked[-1] > first

    wait_until(is_asked, 30, "the token is read again")
    assert 5 < asked[-1] - first < 15


def test_a_missing_token_is_a_settings_error(
    topic: str,
    listener: SecureListener,
    bearer: Sasl,
    token_file: Path,
    make_publisher: MakePublisher,
) -> None:
    token_file.unlink()
    with pytest.raises(SettingsError, match=r"kafka\.sasl\.token: cannot read"):
        make_publisher(topic, bootstrap_servers=listener.bootstrap, tls=Tls(), sasl=bearer)
