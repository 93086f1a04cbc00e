"""relay.yaml as the operator writes it is what the relay reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.made_resources import KAFKA, outbox_relay
from outbox_core.contract.settings import RelaySettings, load_relay
from outbox_operator.relay.spec.settings import secret_files, secrets, settings
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.pod_parts import PORT
from outbox_operator.shared.store import DSN_ENV, SECRETS_PATH

TLS = {
    "caSecretRef": {"name": "kafka-ca", "key": "ca.crt"},
    "certSecretRef": {"name": "kafka-user", "key": "user.crt"},
    "keySecretRef": {"name": "kafka-user", "key": "user.key"},
    "keyPasswordSecretRef": {"name": "kafka-user", "key": "user.password"},
}
SASL = {
    "mechanism": "SCRAM-SHA-256",
    "usernameSecretRef": {"name": "kafka-login", "key": "username"},
    "passwordSecretRef": {"name": "kafka-login", "key": "password"},
}


def kafka(**more: Any) -> dict[str, Any]:
    return {"kafka": {**KAFKA, **more}}


def test_the_smallest_resource_means_the_smallest_file() -> None:
    made = RelaySettings.model_validate(settings(outbox_relay()))
    assert made == RelaySettings.model_validate({"name": "shop/orders", "publisher": kafka()})
    assert made.http.port == PORT


def test_what_the_resource_sets_is_in_the_file(tmp_path: Path) -> None:
    relay = outbox_relay(
        store={
            "postgresql": {
                "dsnSecretRef": {"name": "db", "key": "uri"},
                "connectTimeout": "3s",
                "statementTimeout": "20s",
            }
        },
        subscription={"eventTypes": ["order.*"], "tenants": ["a"]},
        publisher=kafka(topic="orders", format="CloudEvents", config={"client.rack": "eu-1"}),
        batchSize=100,
        workers=3,
        lease="2m",
        ordering="Key",
        onDead="Continue",
        retry={"maxAge": "7d", "overrides": [{"eventType": "a.*", "maxAttempts": 2}]},
        polling={"longest": "1s"},
        drainTimeout="45s",
        log={"level": "debug"},
    )
    file = tmp_path / "relay.yaml"
    file.write_text(yaml.safe_dump(settings(relay)))
    read = load_relay(file)
    assert read.name == "shop/orders"
    assert read.store.dsn.env == DSN_ENV
    assert read.store.connect_timeout.total_seconds() == 3
    assert read.publisher.kafka is not None
    assert read.publisher.kafka.config == {"client.rack": "eu-1"}
    for field in ("subscription", "batch_size", "workers", "lease", "ordering", "on_dead", "retry",
                  "polling", "drain_timeout", "log"):  # fmt: skip
        assert getattr(read, field) == getattr(relay.spec, field), field


def test_secrets_are_files_that_the_pod_must_have() -> None:
    relay = outbox_relay(publisher=kafka(tls=TLS, sasl=SASL))
    read = RelaySettings.model_validate(settings(relay)).publisher.kafka
    assert read is not None
    assert read.tls is not None
    assert read.sasl is not None
    assert read.tls.key_password is not None
    assert read.sasl.username is not None
    assert read.sasl.password is not None
    assert read.sasl.mechanism == "SCRAM-SHA-256"
    named = {
        read.tls.ca_file: TLS["caSecretRef"],
        read.tls.cert_file: TLS["certSecretRef"],
        read.tls.key_file: TLS["keySecretRef"],
        read.tls.key_password.file: TLS["keyPasswordSecretRef"],
        read.sasl.username.file: SASL["usernameSecretRef"],
        read.sasl.password.file: SASL["passwordSecretRef"],
    }
    provided = {Path(SECRETS_PATH) / file: ref for file, ref in secret_files(relay).items()}
    assert provided == {path: SecretKeyRef.model_validate(ref) for path, ref in named.items()}


@pytest.mark.parametrize("tls", [{}, {"caSecretRef": TLS["caSecretRef"]}])
def test_tls_needs_no_certificate_of_our_own(tls: dict[str, Any]) -> None:
    relay = outbox_relay(publisher=kafka(tls=tls))
    read = RelaySettings.model_validate(settings(relay)).publisher.kafka
    assert read is not None
    assert read.tls is not None
    assert (read.tls.cert_file, read.tls.key_file) == (None, None)
    assert (read.tls.ca_file is None) == (tls == {})
    assert len(secret_files(relay)) == len(tls)


def test_without_secrets_of_the_broker_there_are_no_files() -> None:
    assert secret_files(outbox_relay()) == {}
    assert secrets(outbox_relay()) == {"orders-db": {"dsn"}}


def test_every_secret_is_known_with_its_keys() -> None:
    assert secrets(outbox_relay(publisher=kafka(tls=TLS, sasl=SASL))) == {
        "orders-db": {"dsn"},
        "kafka-ca": {"ca.crt"},
        "kafka-user": {"user.crt", "user.key", "user.password"},
        "kafka-login": {"username", "password"},
    }


def test_secrets_of_more_variables_are_known_too() -> None:
    env = [
        {"name": "PROXY", "value": "http://proxy"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "token"}}},
        {"name": "USER", "valueFrom": {"secretKeyRef": {"name": "orders-db", "key": "user"}}},
    ]
    assert secrets(outbox_relay(pod={"env": env})) == {
        "orders-db": {"dsn", "user"},
        "proxy": {"token"},
    }
