"""Whose fault an error is, and that settings cannot weaken the guarantee."""

import logging

import pytest
from confluent_kafka import KafkaError

from outbox_core.contract.librdkafka import REFUSED
from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.publishers.kafka import KafkaSettings, Sasl
from outbox_core.contract.values import SecretRef
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import ErrorClass
from outbox_relay.publishers.kafka.config import (
    Credentials,
    Trouble,
    client_config,
    producer_config,
)
from outbox_relay.publishers.kafka.errors import error_of, kind_of
from outbox_relay.publishers.kafka.publisher import KafkaPublisher


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MSG_SIZE_TOO_LARGE", ErrorClass.EVENT),
        ("TOPIC_EXCEPTION", ErrorClass.EVENT),
        ("INVALID_RECORD", ErrorClass.EVENT),
        ("UNKNOWN_TOPIC_OR_PART", ErrorClass.TRANSIENT),
        ("_UNKNOWN_TOPIC", ErrorClass.TRANSIENT),
        ("TOPIC_AUTHORIZATION_FAILED", ErrorClass.TRANSIENT),
        ("POLICY_VIOLATION", ErrorClass.TRANSIENT),
        ("UNKNOWN", ErrorClass.TRANSIENT),
        ("_TRANSPORT", ErrorClass.OUTAGE),
        ("_ALL_BROKERS_DOWN", ErrorClass.OUTAGE),
        ("_MSG_TIMED_OUT", ErrorClass.OUTAGE),
        ("NOT_ENOUGH_REPLICAS", ErrorClass.DESTINATION),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", ErrorClass.DESTINATION),
        ("LEADER_NOT_AVAILABLE", ErrorClass.DESTINATION),
        ("NOT_LEADER_FOR_PARTITION", ErrorClass.DESTINATION),
        ("KAFKA_STORAGE_ERROR", ErrorClass.DESTINATION),
        ("_AUTHENTICATION", ErrorClass.OUTAGE),
        ("CLUSTER_AUTHORIZATION_FAILED", ErrorClass.OUTAGE),
        ("_PURGE_INFLIGHT", ErrorClass.OUTAGE),
        ("_GAPLESS_GUARANTEE", ErrorClass.OUTAGE),
    ],
)
def test_oo_33_an_error_is_the_events_or_passing_or_a_topics_or_the_brokers(
    name: str, kind: ErrorClass
) -> None:
    assert kind_of(getattr(KafkaError, name)) is kind


def test_oo_27_an_error_carries_kafkas_name_and_text() -> None:
    error = error_of(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert error.code == "MSG_SIZE_TOO_LARGE"
    assert "too large" in error.text


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_setting_that_the_guarantee_rests_on_is_refused_with_the_reason(name: str) -> None:
    settings = KafkaSettings(bootstrap_servers="x:1", config={name: "1"})
    with pytest.raises(SettingsError, match=f"{name} cannot be set: {REFUSED[name]}"):
        client_config(settings)


def test_a_partitioner_that_ignores_the_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="does not keep a key in its partition"):
        client_config(KafkaSettings(bootstrap_servers="x:1", config={"partitioner": "random"}))


def test_other_settings_of_the_client_are_passed_on() -> None:
    settings = KafkaSettings(
        bootstrap_servers="x:1",
        config={"partitioner": "consistent_random", "socket.keepalive.enable": True},
    )
    config = client_config(settings)[0] | producer_config(settings, False, 1000)
    assert config["partitioner"] == "consistent_random"
    assert config["socket.keepalive.enable"] == "true"


def test_a_setting_that_the_client_does_not_know_is_named() -> None:
    with pytest.raises(SettingsError, match=r"no\.such\.thing"):
        KafkaPublisher(KafkaSettings(bootstrap_servers="x:1", config={"no.such.thing": "1"}), False)


def test_oo_21_all_replicas_must_acknowledge_and_nothing_is_sent_twice_by_the_client() -> None:
    config = producer_config(KafkaSettings(bootstrap_servers="x:1"), False, 1000)
    assert config["acks"] == "all"
    assert config["enable.idempotence"] is True
    assert "enable.gapless.guarantee" not in config


def test_in_order_the_producer_leaves_no_gap_and_lets_no_message_time_out_alone() -> None:
    settings = KafkaSettings(bootstrap_servers="x:1")
    config = producer_config(settings, True, 1000)
    assert config["enable.gapless.guarantee"] is True
    assert config["message.timeout.ms"] > settings.delivery_timeout.total_seconds() * 1000


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [
        (False, False, "PLAINTEXT"),
        (True, False, "SSL"),
        (False, True, "SASL_PLAINTEXT"),
        (True, True, "SASL_SSL"),
    ],
)
def test_the_protocol_follows_from_tls_and_sasl(
    tls: bool, sasl: bool, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USERNAME_OF_KAFKA", "relay")
    monkeypatch.setenv("PASSWORD_OF_KAFKA", "hunter2")
    settings = KafkaSettings(
        bootstrap_servers="x:1",
        tls=Tls() if tls else None,
        sasl=Sasl(
            username=SecretRef(env="USERNAME_OF_KAFKA"), password=SecretRef(env="PASSWORD_OF_KAFKA")
        )
        if sasl
        else None,
    )
    config, secrets = client_config(settings)
    assert config["security.protocol"] == protocol
    assert config.get("sasl.password") == ("hunter2" if sasl else None)
    assert secrets.hide("it was hunter2") == ("it was ***" if sasl else "it was hunter2")


def test_a_complaint_of_the_client_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = Trouble(logging.getLogger("test"), Credentials(("hunter2",)))
    for attempt in range(5):
        trouble.log(logging.CRITICAL, "%s [%s] %s", "FAIL", "hunter2", f"after {attempt} ms")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "FAIL [***] after 0 ms"


def test_why_brokers_are_down_is_kept_when_they_all_are() -> None:
    trouble = Trouble(logging.getLogger("test"), Credentials(()))
    trouble.note(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    trouble.note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert trouble.because() == " (connection refused)"
