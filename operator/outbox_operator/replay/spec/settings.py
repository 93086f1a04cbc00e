"""
From OutboxReplay and its OutboxRelay to replay.json, which the driver reads.

Called by the builder of the ConfigMap. Pure: no Secret is read here; the driver finds the DSN in
the environment, under the same name as relays do.
"""

from typing import Any

from outbox_core.contract.replay import ReplayRequest, ReplaySettings
from outbox_core.contract.settings import StoreTimeouts
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.replay.spec.target import TargetRelay
from outbox_operator.shared.objects import without_defaults
from outbox_operator.shared.store import DSN_ENV


def replay_settings(replay: OutboxReplay, relay: TargetRelay) -> dict[str, Any]:
    """As `outbox_core.contract.replay.load_replay` reads it; only what differs from the contract's
    defaults, as in relay.yaml."""
    request: dict[str, Any] = replay.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, include=set(ReplayRequest.model_fields)
    )
    timeouts = relay.spec.store.postgresql.model_dump(
        mode="json", by_alias=True, include=set(StoreTimeouts.model_fields)
    )
    made = {
        **request,
        "id": replay.replay_id,
        "relay": relay.relay_name,
        "store": {"dsn": {"env": DSN_ENV}, **timeouts},
    }
    if replay.requested_by:
        made["requestedBy"] = replay.requested_by
    return without_defaults(ReplaySettings.model_validate(made))
