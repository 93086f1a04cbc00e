"""
OutboxRelay: the resource as people write it, and the status as the operator writes it.

Used throughout the operator. How a relay works is in the contract (`Behaviour`), and so are its
defaults and bounds; this module has what Kubernetes adds. `settings` turns it into relay.yaml,
`crd` into the schema.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from outbox_core.contract.report import Backlog, Throughput, TopError
from outbox_core.contract.settings import Behaviour
from outbox_core.contract.values import Settings, Time
from outbox_operator.relay.spec.autoscaling import MOST_REPLICAS, Autoscaling
from outbox_operator.relay.spec.pod import RelayPod
from outbox_operator.relay.spec.publishers.union import PublisherSpec
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.objects import (
    API_VERSION,
    Count,
    Generation,
    PlainObject,
    Resource,
    Status,
)
from outbox_operator.shared.store import TLS_ENV, TLS_SET_TWICE, Store

LONGEST_OBJECT_NAME = 189
"""Characters. With the longest namespace (63) and a slash before it, the relay's name has 253, the
most that `RelaySettings.name` allows."""


class ReaperSpec(Settings):
    schedule: Annotated[str, Field(max_length=100, pattern=r"^(@[a-z]+|[^ ]+( [^ ]+){4})$")] = (
        "* * * * *"
    )
    """When a CronJob gives back what dead processes had claimed, unless a living relay already
    has."""


class EgressRule(Settings):
    to: Annotated[tuple[PlainObject, ...], Field(max_length=100)] | None = None
    """Peers: `ipBlock`, `podSelector`, `namespaceSelector`. Default: all."""
    ports: Annotated[tuple[PlainObject, ...], Field(max_length=100)] | None = None
    """Ports and protocols. Default: all."""


class NetworkPolicy(Settings):
    enabled: bool = True
    """Create a NetworkPolicy that lets connections into the pods only for metrics and status."""
    egress: Annotated[tuple[EgressRule, ...], Field(max_length=50)] | None = None
    """Where pods may connect to, as in a NetworkPolicy's spec; DNS is always allowed. Default:
    everywhere, because only you know where your database and broker are."""
    egress_elsewhere: bool = False
    """Whether something else limits where pods may connect to: policies of your own, a service
    mesh, a firewall. The operator cannot see that; it only stops warning (`EgressOpen`) that events
    choose hosts and nothing limits them."""


class RelaySpec(Behaviour):
    """The spec of an OutboxRelay."""

    relay_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The relay's name in the database; it cannot be changed later. Default: `<namespace>/<name>`,
    so that relays in two namespaces never share events by accident, and a relay that is deleted and
    created again continues where it stopped. Set it to take over a relay that had another name, or
    when two clusters use one database."""
    store: Store
    """Where the events are."""
    publisher: PublisherSpec
    """Where they go: exactly one kind of publisher."""
    replicas: Annotated[int, Field(ge=0, le=MOST_REPLICAS)] = 1
    """How many pods. `kubectl scale`, a HorizontalPodAutoscaler or KEDA may set it. Leave it out if
    you use `autoscaling`, which then decides by itself."""
    autoscaling: Autoscaling | None = None
    """If present, the operator itself chooses the number of pods, by the age of waiting events."""
    paused: bool = False
    """Claim nothing. New events keep accumulating for this relay, and one pod reports them."""
    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """What happens to the relay's registration in the database when the resource is deleted.
    Retain: events keep accumulating for it, and a resource of the same name continues where it
    stopped. Delete: the relay is retired, and the database forgets it and what it had not published
    yet."""
    reaper: ReaperSpec = ReaperSpec()
    """The CronJob that gives back what dead processes had claimed."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who may connect to the pods, and where the pods may connect to."""
    pod: RelayPod = RelayPod()
    """Image, resources, placement and environment of the pods."""

    @model_validator(mode="after")
    def one_decides_replicas(self) -> "RelaySpec":
        if self.autoscaling is not None and self.replicas != 1:
            raise ValueError(
                "replicas and autoscaling exclude each other: leave out replicas (or set it to 1)"
            )
        return self

    @model_validator(mode="after")
    def tls_is_set_once(self) -> "RelaySpec":
        if self.store.postgresql.tls is not None and any(e.name in TLS_ENV for e in self.pod.env):
            raise ValueError(TLS_SET_TWICE)
        return self

    @property
    def publisher_union(self) -> PublisherSpec:
        return self.publisher


class RolledOut(Status):
    generation: Count
    """The metadata.generation that was carried out."""
    config_map: str | None = None
    """The ConfigMap that its pods read. It stays until another change has reached every pod."""
    revision: str | None = None
    """The pods' revision, as in their annotation outbox.dev/revision."""


class RelayStatus(Status):
    """What the operator knows about the relay, mostly from its pods' /status."""

    observed_generation: Generation | None = None
    """The metadata.generation that this status describes; -1: no operator has seen it yet."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=20)] = ()
    """Ready, Progressing, Degraded, BacklogHealthy, Paused, Reconciling, Stalled. While Ready is
    True, its own observedGeneration is that of the last change that reached every pod."""
    rolled_out: RolledOut | None = None
    """The last change of the spec that reached every pod."""
    pods: str | None = None
    """Ready pods of those requested, for people: `1/2`."""
    replicas: Count | None = None
    """Pods that exist."""
    ready_replicas: Count | None = None
    """Pods that reach both database and broker."""
    selector: str | None = None
    """The label selector of the pods, for the scale subresource."""
    relay_name: str | None = None
    """The relay's name in the database."""
    version: str | None = None
    """The version of the pods that report; several during a rollout."""
    backlog: Backlog | None = None
    """What waits, according to the database."""
    lag: str | None = None
    """The age of the oldest event that could be published now, for people: `3s`, `2h`."""
    throughput: Throughput | None = None
    """All pods together, per second over the last minute."""
    top_errors: Annotated[tuple[TopError, ...], Field(max_length=10)] = ()
    """Why events fail, the most frequent first."""
    observed_at: Time | None = None
    """When backlog, throughput and errors were read. Updated every ten minutes while pods report
    the same; if none reports, it is the time of the last report."""


class OutboxRelay(Resource):
    """Publishes every event of a PostgreSQL outbox that it subscribes to: at least once, in order
    within its key, none lost."""

    api_version: Literal["outbox.dev/v1alpha1"] = API_VERSION
    kind: Literal["OutboxRelay"] = "OutboxRelay"
    spec: RelaySpec
    """The desired state. Written by you."""
    status: RelayStatus = RelayStatus()
    """The current state. Written by the operator."""

    @model_validator(mode="after")
    def name_fits(self) -> "OutboxRelay":
        if self.spec.relay_name is None and len(self.metadata.name) > LONGEST_OBJECT_NAME:
            raise ValueError(
                f"metadata.name is longer than {LONGEST_OBJECT_NAME} characters: shorten it, or "
                "set spec.relayName"
            )
        return self

    @property
    def relay_name(self) -> str:
        """In the database. No namespace contains a slash, so no two resources get the same name."""
        return self.spec.relay_name or f"{self.metadata.namespace}/{self.metadata.name}"
