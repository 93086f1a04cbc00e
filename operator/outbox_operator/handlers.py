"""
Kopf's side: it watches the custom resources and calls the handlers here, which pass everything on
to `program`.

Only `on.event` is used. So Kopf stores no progress in annotations and needs no finalizer, and a
resource can be deleted while the operator is not running.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import kopf

from outbox_operator.kube.kinds import CUSTOM, ObjectKind
from outbox_operator.program import Operator
from outbox_operator.repeats import RepeatsOf
from outbox_operator.shared.objects import GROUP, VERSION

KOPF = "kopf"
"""The parent of all of Kopf's loggers."""


class Patience:
    """
    The seconds that Kopf waits between attempts to list and to watch. They never run out: after
    the last one Kopf would stop the whole operator, even if only one namespace is gone or may not
    be read.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3, 5, 8, 13), itertools.repeat(20))


def quiet() -> None:
    """
    Keep Kopf from flooding the log: it logs every event that it handles, and every attempt to list
    or to watch. To be called when the process's log handlers are set up.
    """
    logging.getLogger(KOPF).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(RepeatsOf(KOPF))


def register(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    @kopf.on.login(registry=registry)
    async def log_in(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)

    @kopf.on.startup(registry=registry)
    async def begin(settings: kopf.OperatorSettings, **_: Any) -> None:
        # Our kinds are there from the start, and scanning for others needs cluster-wide rights.
        settings.scanning.disabled = True
        settings.posting.enabled = False  # we word the Events ourselves
        settings.networking.connect_timeout = 10
        settings.networking.error_backoffs = Patience()
        settings.watching.server_timeout = 290
        settings.watching.client_timeout = 320
        try:
            await operator.start()
        except Exception as error:  # Kopf would retry for ever; restarting is the Deployment's job
            operator.failure = str(error) or type(error).__name__
            raise kopf.PermanentError(operator.failure) from error

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        await operator.stop()

    for kind in CUSTOM.values():
        watch(registry, kind, operator)


def watch(registry: kopf.OperatorRegistry, kind: ObjectKind, operator: Operator) -> None:
    @kopf.on.event(GROUP, VERSION, kind.plural, registry=registry)
    async def noticed(event: Any, name: str, namespace: str | None, **_: Any) -> None:
        operator.noticed(kind.name, str(namespace), name, event)
