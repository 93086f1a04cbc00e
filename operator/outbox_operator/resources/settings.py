"""
OutboxRelay to relay.yaml, and what a pod must provide so that the file's references hold.

Called by the builders of ConfigMap, Deployment and CronJob. Pure: no secret is read here, a Secret
is only named.
"""

from typing import Any

from outbox_core.contract.settings import Http, RelaySettings, StoreTimeouts
from outbox_core.contract.values import Settings
from outbox_operator.resources.objects import SecretKeyRef
from outbox_operator.resources.publisher import Kafka
from outbox_operator.resources.relay import OutboxRelay, RelaySpec

SAME = (set(RelaySpec.model_fields) & set(RelaySettings.model_fields)) - {"store", "publisher"}
"""What resource and file say in the same words."""

PORT = Http().port
"""Metrics, probes and status: relay.yaml says nothing about it, so it is the contract's."""

DSN_ENV = "OUTBOX_DSN"
"""An environment variable and not a file, so that `kubectl exec` finds it without a config, too."""

SECRETS_PATH = "/etc/outbox/secrets"
"""Where a volume is mounted that projects `secret_files`. Files and not variables: the relay reads
them anew for every client that it makes, and a changed Secret reaches a mounted file."""

CA_FILE = "kafka-ca.crt"
CERT_FILE = "kafka-tls.crt"
KEY_FILE = "kafka-tls.key"
KEY_PASSWORD_FILE = "kafka-key-password"  # noqa: S105 - its name, not itself
USERNAME_FILE = "kafka-username"
PASSWORD_FILE = "kafka-password"  # noqa: S105
STORE_CA_FILE = "postgresql-ca.crt"
STORE_CERT_FILE = "postgresql-tls.crt"
STORE_KEY_FILE = "postgresql-tls.key"

PUBLIC_CAS = "/etc/ssl/certs/ca-certificates.crt"
"""In the images."""


def settings(relay: OutboxRelay) -> dict[str, Any]:
    """
    The content of relay.yaml, as `contract.settings.load_relay` reads it. Only what differs
    from the contract's defaults: a relay of an older version, which a resource may pin, refuses
    fields that it does not know.

    A pod that uses it provides: the variable `DSN_ENV` from `spec.store.postgresql.dsnSecretRef`,
    and `store_variables`; at `SECRETS_PATH` what `secret_files` says; POD_NAME by the downward API,
    which becomes the relay's identity.
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


def without_defaults(settings: Settings) -> dict[str, Any]:
    """As it is written into a file."""
    return settings.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def secret_files(relay: OutboxRelay) -> dict[str, SecretKeyRef]:
    """Which keys of which Secrets become which files below `SECRETS_PATH`, of a relay's pods."""
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


def store_files(relay: OutboxRelay) -> dict[str, SecretKeyRef]:
    """The same, of any pod that connects to the relay's store."""
    tls = relay.spec.store.postgresql.tls
    if tls is None:
        return {}
    wanted = {
        STORE_CA_FILE: tls.ca_secret_ref,
        STORE_CERT_FILE: tls.cert_secret_ref,
        STORE_KEY_FILE: tls.key_secret_ref,
    }
    return {file: ref for file, ref in wanted.items() if ref is not None}


def store_variables(relay: OutboxRelay) -> dict[str, str]:
    """TLS to the store, as variables that libpq itself reads: so every program in a pod has it,
    with a config or without, and of any version. In libpq the connection string would win over
    them; `outbox_core.store.connection` sees that it does not."""
    tls = relay.spec.store.postgresql.tls
    if tls is None:
        return {}
    made = {"OUTBOX_DSN_TLS": "ignore", "PGSSLMODE": tls.mode}
    if tls.ca_secret_ref:
        made["PGSSLROOTCERT"] = _path(STORE_CA_FILE)
    elif tls.mode == "verify-full":
        made["PGSSLROOTCERT"] = PUBLIC_CAS
    if tls.cert_secret_ref:
        made |= {"PGSSLCERT": _path(STORE_CERT_FILE), "PGSSLKEY": _path(STORE_KEY_FILE)}
    return made


def store_secrets(relay: OutboxRelay) -> dict[str, set[str]]:
    """Every Secret that a pod reads which connects to the relay's store, with its keys."""
    return _by_secret(relay.spec.store.postgresql.dsn_secret_ref, *store_files(relay).values())


def secrets(relay: OutboxRelay) -> dict[str, set[str]]:
    """Every Secret that the pods read, with the keys that must be in it."""
    store = relay.spec.store.postgresql.dsn_secret_ref
    return _by_secret(store, *secret_files(relay).values(), *secret_variables(relay))


def _by_secret(*refs: SecretKeyRef) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for ref in refs:
        found.setdefault(ref.name, set()).add(ref.key)
    return found


def secret_variables(relay: OutboxRelay) -> list[SecretKeyRef]:
    """Which keys of which Secrets become variables because `spec.pod.env` says so. A variable is
    read when a container starts: without a new pod a changed Secret would never reach it."""
    sources = [e.value_from for e in relay.spec.pod.env if e.value_from is not None]
    return [s.secret_key_ref for s in sources if s.secret_key_ref is not None]


def _kafka(kafka: Kafka) -> dict[str, Any]:
    made: dict[str, Any] = kafka.model_dump(mode="json", by_alias=True, exclude={"tls", "sasl"})
    if tls := kafka.tls:
        made["tls"] = {}
        if tls.ca_secret_ref:
            made["tls"]["caFile"] = _path(CA_FILE)
        if tls.cert_secret_ref:
            made["tls"] |= {"certFile": _path(CERT_FILE), "keyFile": _path(KEY_FILE)}
        if tls.key_password_secret_ref:
            made["tls"]["keyPassword"] = {"file": _path(KEY_PASSWORD_FILE)}
    if kafka.sasl:
        made["sasl"] = {
            "mechanism": kafka.sasl.mechanism,
            "username": {"file": _path(USERNAME_FILE)},
            "password": {"file": _path(PASSWORD_FILE)},
        }
    return made


def _path(file: str) -> str:
    return f"{SECRETS_PATH}/{file}"
