"""
Dispatch: which resources exist, which reconciler each one gets, and what happens when a reconcile
fails.

`program` reports what Kopf sees of the resources; the worklist calls `reconcile` for one resource
at a time.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from outbox_operator.kube.api import ApiError, Unreachable
from outbox_operator.kube.writer import Writer
from outbox_operator.metrics import Metrics
from outbox_operator.reconciling import KindReconciler
from outbox_operator.shared.objects import Body, Key, others_part

log = logging.getLogger("outbox.operator")


class Dispatcher:
    def __init__(
        self, reconcilers: Mapping[str, KindReconciler[Any]], writer: Writer, metrics: Metrics
    ) -> None:
        """`reconcilers`: by name of their kind."""
        self._reconcilers = reconcilers
        self._writer = writer
        self._metrics = metrics
        self._bodies: dict[Key, Body] = {}

    def seen(self, key: Key, body: Body | None) -> bool:
        """A resource as the API server has it now; None: it is gone. Returns whether to reconcile
        it: a status that we wrote ourselves is no news."""
        before = self._bodies.get(key)
        if body is None:
            self._bodies.pop(key, None)
            self._reconcilers[key[0]].forget(key)
            self._metrics.forget(key)
            return False
        self._bodies[key] = body
        return is_news(before, body)

    def deleted(self, key: Key, last: Body) -> bool:
        """A resource is gone; `last` is its last state. Returns whether there is something to
        report."""
        self.seen(key, None)
        return self._reconcilers[key[0]].deleted(key, last)

    def knows(self, key: Key) -> bool:
        return key in self._bodies

    def known(self) -> list[Key]:
        return list(self._bodies)

    async def reconcile(self, key: Key) -> float | None:
        """Returns after how many seconds to reconcile again; None: only when something changes."""
        kind, namespace, name = key
        reconciler = self._reconcilers[kind]
        await reconciler.after_deletion(key)
        body = self._bodies.get(key)
        if body is None:
            return None
        start = time.monotonic()
        result = "failed"
        try:
            reconciled = await reconciler.reconcile(key, self._writer.latest(body))
            result = "done"
            if reconciled.conditions is not None:
                self._metrics.judged(key, {c.type: c.status for c in reconciled.conditions})
            return reconciled.again_seconds
        except ApiError as error:
            if error.status in (404, 409):  # gone or changed meanwhile
                result = "outdated"
            if error.is_absence:
                self._gone(key, body)
                return None
            if error.status == 403:  # the resource's owner may not see the operator's log
                await reconciler.lacks_right(self._writer.latest(body), str(error))
            level = logging.INFO if result == "outdated" else logging.WARNING
            self._complain(key, str(error), level)
            raise
        except Unreachable as error:
            self._complain(key, f"the API server does not answer: {error}", logging.WARNING)
            raise
        except Exception:
            log.exception(
                "a defect while reconciling %s %s",
                kind,
                name,
                extra={"event": "defect", "namespace": namespace, "resource": name},
            )
            raise
        finally:
            self._metrics.reconciled(kind, result, time.monotonic() - start)

    def _gone(self, key: Key, body: Body) -> None:
        """Kopf does not report what was deleted while it could not watch. If it has reported
        another resource of that name meanwhile, that one is kept."""
        if self._bodies.get(key) is body:
            self.seen(key, None)

    def _complain(self, key: Key, why: str, level: int) -> None:
        kind, namespace, name = key
        log.log(
            level,
            "could not reconcile %s %s: %s; trying again",
            kind,
            name,
            why,
            extra={"event": "retry", "namespace": namespace, "resource": name},
        )


def is_news(before: Body | None, body: Body) -> bool:
    """Whether somebody else changed it. What changes with every reconcile is no news: the next
    reconcile would follow at once, and write again."""
    return before is None or others_part(before) != others_part(body)
