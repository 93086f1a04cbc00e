"""
The CustomResourceDefinitions of all kinds: names, columns, subresources. Their schemas come from
the models.

Called by `dev.reference.definitions`, which writes crds/. Pure. The columns decide what `kubectl
get` shows: first what an on-call person needs, and more with `-o wide`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outbox_operator.definitions.rules import RULES
from outbox_operator.definitions.schema import Schema, as_validations, field_schema, one_line
from outbox_operator.kinds import RELAY, REPLAY, CustomKind
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.shared.objects import GROUP, UNSEEN, VERSION, Resource

CATEGORY = "outbox"


def column(name: str, path: str, text: str, kind: str = "string", wide: bool = False) -> Schema:
    made: Schema = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return made | ({"priority": 1} if wide else {})


def condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


AGE = column("Age", ".metadata.creationTimestamp", "Time since the resource was created", "date")

RELAY_COLUMNS = [
    column("Ready", condition("Ready", "status"), "Whether events flow"),
    column("Degraded", condition("Degraded", "status"), "Whether something needs a person"),
    column("Paused", ".spec.paused", "Whether a person stopped it", "boolean"),
    column("Replicas", ".status.pods", "Ready pods of those requested"),
    column("Pending", ".status.backlog.pending", "Events that wait", "integer"),
    column("Dead", ".status.backlog.dead", "Events that were given up", "integer"),
    column("Lag", ".status.lag", "Age of the oldest event that could go out now"),
    AGE,
    column(
        "Rate", ".status.throughput.published", "Events published per second", "number", wide=True
    ),
    column("Ordering", ".spec.ordering", "None or Key", wide=True),
    column("Relay", ".status.relayName", "Its name in the database", wide=True),
    column("Version", ".status.version", "Version of the relay's pods", wide=True),
    column("Reason", condition("Ready", "reason"), "Why it is ready or not", wide=True),
    column("Message", condition("Ready", "message"), "The same in a sentence", wide=True),
]

REPLAY_COLUMNS = [
    column("Phase", ".status.phase", "The stage of the replay"),
    column("Matched", ".status.matched", "Events that were selected", "integer"),
    column("Replayed", ".status.replayed", "Events that were given back", "integer"),
    column("Progress", ".status.progress", "How much is done"),
    AGE,
    column("Relay", ".spec.relayRef.name", "The relay whose events are replayed", wide=True),
    column("Action", ".spec.action", "Requeue or Backfill", wide=True),
    column(
        "Dry run", ".spec.dryRun", "Whether it only shows what would happen", "boolean", wide=True
    ),
    column("Skipped", ".status.skipped", "Events that were left unchanged", "integer", wide=True),
    column("Rate", ".status.rate", "Events per second", "number", wide=True),
    column("ETA", ".status.eta", "When it will be done", wide=True),
    column("Engine", ".status.engine", "SparkApplication or Job", wide=True),
    column("Message", ".status.message", "What is happening", wide=True),
]

SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


@dataclass(frozen=True)
class Definition:
    kind: CustomKind
    model: type[Resource]
    columns: list[Schema]
    subresources: Mapping[str, Any]


DEFINITIONS = (
    Definition(RELAY, OutboxRelay, RELAY_COLUMNS, {"status": {}, "scale": SCALE}),
    Definition(REPLAY, OutboxReplay, REPLAY_COLUMNS, {"status": {}}),
)
"""crds/ and docs/resources.md have them in this order."""


def crd(definition: Definition) -> Schema:
    names = definition.kind
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": dict(definition.subresources),
        "additionalPrinterColumns": definition.columns,
        "schema": {"openAPIV3Schema": root_schema(definition.model)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.name,
                "listKind": f"{names.name}List",
                "plural": names.plural,
                "singular": names.name.lower(),
                "shortNames": [names.short],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def root_schema(model: type[Resource]) -> Schema:
    """Kind, version and metadata belong to the API server, which checks them itself."""
    status = field_schema(model.model_fields["status"])
    status["default"] = {"observedGeneration": UNSEEN}
    made: Schema = {
        "description": one_line(model.__doc__),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": field_schema(model.model_fields["spec"]),
            "status": status,
        },
    }
    if rules := RULES.get(model):
        made["x-kubernetes-validations"] = as_validations(list(rules))
    return made
