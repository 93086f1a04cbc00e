"""
From OutboxRelay to relay.yaml, and what a pod must provide so that the file's references work.

Called by the builders of ConfigMap, Deployment and CronJob. Pure: no Secret is read here, only
named.
"""

from typing import Any

from outbox_core.contract.publishers.union import PublisherSettings
from outbox_core.contract.settings import RelaySettings, StoreTimeouts
from outbox_operator.relay.spec.publishers.common import ServiceAccountToken
from outbox_operator.relay.spec.resource import OutboxRelay, RelaySpec
from outbox_operator.relay.spec.secret_refs import Translated, model_of, translate
from outbox_operator.shared.objects import SecretKeyRef, without_defaults
from outbox_operator.shared.store import DSN_ENV, keys_by_secret, store_files

SAME = (set(RelaySpec.model_fields) & set(RelaySettings.model_fields)) - {"store", "publisher"}
"""Fields that the resource and the file have under the same name."""


def settings(relay: OutboxRelay) -> dict[str, Any]:
    """
    The content of relay.yaml, as `outbox_core.contract.settings.load` reads it. Only what differs
    from the contract's defaults: an older relay, which a resource may pin, refuses fields that it
    does not know.

    A pod that uses it provides the variable `DSN_ENV` from `spec.store.postgresql.dsnSecretRef`,
    and `store_variables`; the files of `secret_files` and `token_files` at `SECRETS_PATH`; and
    POD_NAME from the downward API, which becomes the relay's identity.
    """
    spec = relay.spec
    given: dict[str, Any] = spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, include=SAME
    )
    store = spec.store.postgresql.model_dump(
        mode="json", by_alias=True, include=set(StoreTimeouts.model_fields)
    )
    made = {
        "name": relay.relay_name,
        "store": {"dsn": {"env": DSN_ENV}, **store},
        "publisher": {spec.publisher.kind: _publisher(relay).written},
        **given,
    }
    return without_defaults(RelaySettings.model_validate(made))


def secret_files(relay: OutboxRelay) -> dict[str, SecretKeyRef]:
    """By file below `SECRETS_PATH` in a relay's pods: the key of a Secret."""
    return store_files(relay) | _publisher(relay).secrets


def token_files(relay: OutboxRelay) -> dict[str, ServiceAccountToken]:
    """By file there: the token of the pods' service account."""
    return _publisher(relay).tokens


def secrets(relay: OutboxRelay) -> dict[str, set[str]]:
    """Every Secret that the pods read, with the keys that it must have."""
    store = relay.spec.store.postgresql.dsn_secret_ref
    return keys_by_secret(store, *secret_files(relay).values(), *secret_variables(relay))


def secret_variables(relay: OutboxRelay) -> list[SecretKeyRef]:
    """The keys of Secrets that become variables through `spec.pod.env`. A variable is read when a
    container starts: a changed Secret only reaches it through a new pod."""
    sources = [e.value_from for e in relay.spec.pod.env if e.value_from is not None]
    return [s.secret_key_ref for s in sources if s.secret_key_ref is not None]


def _publisher(relay: OutboxRelay) -> Translated:
    publisher = relay.spec.publisher
    contract = model_of(PublisherSettings, publisher.kind)
    return translate(publisher.chosen, contract, publisher.kind)
