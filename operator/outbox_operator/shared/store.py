"""
The store of a relay: how people describe it, and what a pod needs to connect to it.

Pods of relays connect to it, and so do those of replays, which use their relay's store. Pure: no
Secret is read here, only named.
"""

from typing import Annotated, Literal, Protocol

from pydantic import Field, model_validator

from outbox_core.contract.settings import StoreTimeouts
from outbox_core.contract.values import Settings
from outbox_operator.shared.objects import SecretKeyRef

DSN_ENV = "OUTBOX_DSN"
"""An environment variable instead of a file, so that `kubectl exec` also works without a config."""
SECRETS_PATH = "/etc/outbox/secrets"
"""The mount path of a volume that projects `secret_files`. Files instead of variables: the relay
reads them again for every client that it creates, and a changed Secret reaches a mounted file."""
STORE_CA_FILE = "postgresql-ca.crt"
STORE_CERT_FILE = "postgresql-tls.crt"
STORE_KEY_FILE = "postgresql-tls.key"
PUBLIC_CAS = "/etc/ssl/certs/ca-certificates.crt"
"""The public CAs in our images."""

TLS_ENV = ("PGSSLMODE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY", "OUTBOX_DSN_TLS")
"""Variables that `store.postgresql.tls` is turned into."""
TLS_SET_TWICE = f"store.postgresql.tls sets {', '.join(TLS_ENV)}: remove them from pod.env"


class DsnSecretRef(SecretKeyRef):
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "dsn"
    """The key in that Secret that holds a PostgreSQL connection string."""


class StoreTls(Settings):
    mode: Literal["require", "verify-ca", "verify-full"] = "verify-full"
    """As PostgreSQL's sslmode. verify-full: a trusted CA has signed the server's certificate, and
    it is for the host that the connection string names. verify-ca: the same, but for any host.
    require: encrypted, and the server is not verified unless there is a CA."""
    ca_secret_ref: SecretKeyRef | None = None
    """The CA that signed the server's certificate. Default: the usual public CAs."""
    cert_secret_ref: SecretKeyRef | None = None
    """The relay's own certificate, if the server asks for one (clientcert, or the method cert)."""
    key_secret_ref: SecretKeyRef | None = None
    """The private key of that certificate, without a password."""

    @model_validator(mode="after")
    def belong_together(self) -> "StoreTls":
        if (self.cert_secret_ref is None) != (self.key_secret_ref is None):
            raise ValueError("certSecretRef and keySecretRef go together: add the other one")
        if self.mode == "verify-ca" and self.ca_secret_ref is None:
            raise ValueError(
                "verify-ca needs caSecretRef, otherwise any public certificate would be accepted: "
                "add it, or use verify-full"
            )
        return self


class PostgreSql(StoreTimeouts):
    dsn_secret_ref: DsnSecretRef
    """The Secret with the connection string, under the key `dsn` unless you name another. It may
    point to PgBouncer in transaction mode."""
    tls: StoreTls | None = None
    """If present, even if empty, pods connect with TLS, regardless of the connection string.
    Default: as in the connection string; PostgreSQL's own default encrypts if possible and does not
    verify the server."""
    manage_schema: bool = True
    """Create and update the schema `outbox` before relays start. Set it to false if someone else
    runs `outbox-relay migrate`, because the relay's role must not."""


class Store(Settings):
    postgresql: PostgreSql
    """The database that your applications write their events to."""


class HasStoreSpec(Protocol):
    @property
    def store(self) -> Store: ...


class HasStore(Protocol):
    """A resource whose spec names a store: an OutboxRelay."""

    @property
    def spec(self) -> HasStoreSpec: ...


def store_files(relay: HasStore) -> dict[str, SecretKeyRef]:
    """By file: the key of a Secret, for every pod that connects to the relay's store."""
    tls = relay.spec.store.postgresql.tls
    if tls is None:
        return {}
    wanted = {
        STORE_CA_FILE: tls.ca_secret_ref,
        STORE_CERT_FILE: tls.cert_secret_ref,
        STORE_KEY_FILE: tls.key_secret_ref,
    }
    return {file: ref for file, ref in wanted.items() if ref is not None}


def store_variables(relay: HasStore) -> dict[str, str]:
    """TLS to the store, as variables that libpq itself reads, so that every program in a pod uses
    it, with or without a config, and in any version. In libpq the connection string would take
    precedence; `outbox_core.store.connection` prevents that."""
    tls = relay.spec.store.postgresql.tls
    if tls is None:
        return {}
    made = {"OUTBOX_DSN_TLS": "ignore", "PGSSLMODE": tls.mode}
    if tls.ca_secret_ref:
        made["PGSSLROOTCERT"] = secret_path(STORE_CA_FILE)
    elif tls.mode == "verify-full":
        made["PGSSLROOTCERT"] = PUBLIC_CAS
    if tls.cert_secret_ref:
        made |= {"PGSSLCERT": secret_path(STORE_CERT_FILE), "PGSSLKEY": secret_path(STORE_KEY_FILE)}
    return made


def store_secrets(relay: HasStore) -> dict[str, set[str]]:
    """Every Secret that a pod needs to connect to the relay's store, with its keys."""
    return keys_by_secret(relay.spec.store.postgresql.dsn_secret_ref, *store_files(relay).values())


def keys_by_secret(*refs: SecretKeyRef) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for ref in refs:
        found.setdefault(ref.name, set()).add(ref.key)
    return found


def secret_path(file: str) -> str:
    return f"{SECRETS_PATH}/{file}"
