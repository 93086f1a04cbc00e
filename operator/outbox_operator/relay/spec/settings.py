"""
From OutboxRelay to relay.yaml, and what a pod must provide so that the file's references work.

Called by the builders of ConfigMap, Deployment and CronJob. Pure: no Secret is read here, only
named.
"""

from typing import Any

from outbox_core.contract.settings import RelaySettings, StoreTimeouts
from outbox_operator.relay.spec.publisher import Kafka
from outbox_operator.relay.spec.resource import OutboxRelay, RelaySpec
from outbox_operator.shared.objects import SecretKeyRef, without_defaults
from outbox_operator.shared.store import DSN_ENV, keys_by_secret, secret_path, store_files

SAME = (set(RelaySpec.model_fields) & set(RelaySettings.model_fields)) - {"store", "publisher"}
"""Fields that the resource and the file have under the same name."""

CA_FILE = "kafka-ca.crt"
CERT_FILE = "kafka-tls.crt"
KEY_FILE = "kafka-tls.key"
KEY_PASSWORD_FILE = "kafka-key-password"  # noqa: S105 - a file name, not a password
USERNAME_FILE = "kafka-username"
PASSWORD_FILE = "kafka-password"  # noqa: S105


def settings(relay: OutboxRelay) -> dict[str, Any]:
    """
    The content of relay.yaml, as `outbox_core.contract.settings.load` reads it. Only what differs
    from the contract's defaults: an older relay, which a resource may pin, refuses fields that it
    does not know.

    A pod that uses it provides the variable `DSN_ENV` from `spec.store.postgresql.dsnSecretRef`,
    and `store_variables`; the files of `secret_files` at `SECRETS_PATH`; and POD_NAME from the
    downward API, which becomes the relay's identity.
    """
    spec = relay.spec
    given: dict[str, Any] = spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, include=SAME
    )
    store = spec.store.postgresql.model_dump(
        mode="json", by_alias=True, include=set(StoreTimeouts.model_fields)
    )
    assert spec.publisher.kafka is not None
    made = {
        "name": relay.relay_name,
        "store": {"dsn": {"env": DSN_ENV}, **store},
        "publisher": {"kafka": _kafka(spec.publisher.kafka)},
        **given,
    }
    return without_defaults(RelaySettings.model_validate(made))


def secret_files(relay: OutboxRelay) -> dict[str, SecretKeyRef]:
    """By file below `SECRETS_PATH` in a relay's pods: the key of a Secret."""
    kafka = relay.spec.publisher.kafka
    assert kafka is not None
    wanted: dict[str, SecretKeyRef | None] = {}
    if tls := kafka.tls:
        wanted |= {
            CA_FILE: tls.ca_secret_ref,
            CERT_FILE: tls.cert_secret_ref,
            KEY_FILE: tls.key_secret_ref,
            KEY_PASSWORD_FILE: tls.key_password_secret_ref,
        }
    if sasl := kafka.sasl:
        wanted |= {
            USERNAME_FILE: sasl.username_secret_ref,
            PASSWORD_FILE: sasl.password_secret_ref,
        }
    return store_files(relay) | {file: ref for file, ref in wanted.items() if ref is not None}


def secrets(relay: OutboxRelay) -> dict[str, set[str]]:
    """Every Secret that the pods read, with the keys that it must have."""
    store = relay.spec.store.postgresql.dsn_secret_ref
    return keys_by_secret(store, *secret_files(relay).values(), *secret_variables(relay))


def secret_variables(relay: OutboxRelay) -> list[SecretKeyRef]:
    """The keys of Secrets that become variables through `spec.pod.env`. A variable is read when a
    container starts: a changed Secret only reaches it through a new pod."""
    sources = [e.value_from for e in relay.spec.pod.env if e.value_from is not None]
    return [s.secret_key_ref for s in sources if s.secret_key_ref is not None]


def _kafka(kafka: Kafka) -> dict[str, Any]:
    made: dict[str, Any] = kafka.model_dump(mode="json", by_alias=True, exclude={"tls", "sasl"})
    if tls := kafka.tls:
        made["tls"] = {}
        if tls.ca_secret_ref:
            made["tls"]["caFile"] = secret_path(CA_FILE)
        if tls.cert_secret_ref:
            made["tls"] |= {"certFile": secret_path(CERT_FILE), "keyFile": secret_path(KEY_FILE)}
        if tls.key_password_secret_ref:
            made["tls"]["keyPassword"] = {"file": secret_path(KEY_PASSWORD_FILE)}
    if kafka.sasl:
        made["sasl"] = {
            "mechanism": kafka.sasl.mechanism,
            "username": {"file": secret_path(USERNAME_FILE)},
            "password": {"file": secret_path(PASSWORD_FILE)},
        }
    return made
