"""
Kopf's side: it watches the custom resources and calls here; what it sees goes to the worklist.

Only `on.event`: so Kopf keeps no progress in annotations, needs no finalizer, and a resource can be
deleted while the operator is away.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import kopf

from outbox_operator.kube.kinds import CUSTOM, Kind
from outbox_operator.program import Operator
from outbox_operator.repeats import Repeats
from outbox_operator.shared.objects import GROUP, VERSION

KOPF_WATCHES = "kopf._cogs.clients.watching"
"""Kopf's logger, which reports each attempt."""


class Patience:
    """Kopf's pauses, in seconds, between attempts to list and to watch. Without an end: after the
    last one it would stop everything, because of a single namespace that is gone or may not be
    read."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3, 5, 8, 13), itertools.repeat(20))


def register(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    logging.getLogger(KOPF_WATCHES).addFilter(Repeats())

    @kopf.on.login(registry=registry)
    async def log_in(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)

    @kopf.on.startup(registry=registry)
    async def begin(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.scanning.disabled = True  # our kinds are there from the start: no rights needed
        settings.posting.enabled = False  # Events are ours to word
        settings.networking.connect_timeout = 10
        settings.networking.error_backoffs = Patience()
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

    for kind in CUSTOM.values():
        watch(registry, kind, operator)


def watch(registry: kopf.OperatorRegistry, kind: Kind, operator: Operator) -> None:
    @kopf.on.event(GROUP, VERSION, kind.plural, registry=registry)
    async def noticed(event: Any, name: str, namespace: str | None, **_: Any) -> None:
        operator.noticed(kind.name, str(namespace), name, event)
