"""TLS and SASL, and that a secret stays one."""

import logging
import traceback
from pathlib import Path

import pytest

from broker.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services import Kafka, SecureListener
from fixtures.topics import Consume
from outbox_core.contract.settings import Sasl, Tls
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
