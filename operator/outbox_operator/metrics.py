"""The operator's own metrics: `outbox_operator_*`, with bounded label sets."""

from collections import Counter as Counting
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outbox_operator.kinds import CUSTOM_KINDS
from outbox_operator.shared.objects import Key

STATES = ("True", "False", "Unknown")


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = Counter(
            "outbox_operator_reconciles_total",
            "Reconciles of a resource: done, outdated (it had changed meanwhile), failed.",
            ["kind", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "outbox_operator_reconcile_seconds",
            "How long a reconcile took.",
            ["kind"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self._resources = Gauge(
            "outbox_operator_resources",
            "Resources by condition and status.",
            ["kind", "condition", "status"],
            registry=self.registry,
        )
        self._watches = Gauge(
            "outbox_operator_watch_synced",
            "Whether a watch works: everything is listed, and changes arrive. 0: nothing in that "
            "namespace is reconciled.",
            # Not `namespace`: Prometheus adds that label for the operator's own namespace.
            ["kind", "watched_namespace"],
            registry=self.registry,
        )
        self._conditions: dict[Key, Mapping[str, str]] = {}
        for kind in CUSTOM_KINDS.values():  # from the start: an absent series cannot alert
            for outcome in ("done", "outdated", "failed"):
                self._reconciles.labels(kind.name, outcome)
            for condition in kind.conditions:
                for state in STATES:
                    self._resources.labels(kind.name, condition.value, state)

    def reconciled(self, kind: str, outcome: str, seconds: float) -> None:
        self._reconciles.labels(kind, outcome).inc()
        self._seconds.labels(kind).observe(seconds)

    def watching(self, kind: str, namespace: str | None, synced: bool) -> None:
        """None: all namespaces."""
        self._watches.labels(kind, namespace or "*").set(synced)

    def judged(self, key: Key, conditions: Mapping[str, str]) -> None:
        if self._conditions.get(key) != conditions:
            self._conditions[key] = conditions
            self._count(key[0])

    def forget(self, key: Key) -> None:
        if self._conditions.pop(key, None) is not None:
            self._count(key[0])

    def _count(self, kind: str) -> None:
        counts = Counting(
            (condition, status)
            for (of, _, _), conditions in self._conditions.items()
            if of == kind
            for condition, status in conditions.items()
        )
        for condition in CUSTOM_KINDS[kind].conditions:
            for state in STATES:
                self._resources.labels(kind, condition.value, state).set(
                    counts[condition.value, state]
                )
