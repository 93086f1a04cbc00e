"""
Kopf's side: it watches the custom resources and calls here; what it sees goes to the worklist.

Only `on.event`: so Kopf keeps no progress in annotations, needs no finalizer, and a resource can be
deleted while the operator is away.
"""

from typing import Any

import kopf

from outbox_operator.cluster.kinds import RELAYS, REPLAYS
from outbox_operator.program import Operator
from outbox_operator.resources.objects import GROUP, VERSION


def register(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    @kopf.on.login(registry=registry)
    async def log_in(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)

    @kopf.on.startup(registry=registry)
    async def begin(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.scanning.disabled = True  # our kinds are there from the start: no rights needed
        settings.posting.enabled = False  # Events are ours to word
        settings.networking.connect_timeout = 10
        settings.watching.server_timeout = 290
        settings.watching.client_timeout = 320
        try:
            await operator.start()
        except Exception as error:  # Kopf would try again for ever: the Deployment does it better
            operator.failure = str(error) or type(error).__name__
            raise kopf.PermanentError(operator.failure) from error

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        await operator.stop()

    @kopf.on.event(GROUP, VERSION, RELAYS.plural, registry=registry)
    async def relay(event: Any, name: str, namespace: str | None, **_: Any) -> None:
        operator.noticed(RELAYS.name, str(namespace), name, event)

    @kopf.on.event(GROUP, VERSION, REPLAYS.plural, registry=registry)
    async def replay(event: Any, name: str, namespace: str | None, **_: Any) -> None:
        operator.noticed(REPLAYS.name, str(namespace), name, event)
