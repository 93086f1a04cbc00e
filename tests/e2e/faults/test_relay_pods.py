"""Relays as pods, on plain manifests: events flow, a pod dies, a CronJob reaps."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fixtures import workloads
from fixtures.cluster import Namespace
from fixtures.tools import Tools

PARTITIONS = 6
MORE = """
    SELECT outbox.emit('order.placed', n::text, ordering_key => 'more-' || n % 40)
      FROM generate_series({first}, {last}) n
"""


class Stage:
    """PostgreSQL, Kafka and the scripts in one namespace."""

    def __init__(self, namespace: Namespace, images: Mapping[str, str]) -> None:
        self.namespace = namespace
        self.images = images
        namespace.apply(
            *workloads.postgres(images["postgres"]),
            *workloads.kafka(images["kafka"]),
        )
        self._tools = Tools(namespace, images["relay"])
        namespace.wait_for_rollout("postgres", 150)
        namespace.wait_for_rollout("kafka", 150)
        self._tools.wait(150)

    def start(self, script: str, *arguments: object) -> str:
        return self._tools.start(script, *arguments, dsn=workloads.DSN, kafka=workloads.KAFKA)

    def finish(self, started: str, within: float) -> str:
        """What it printed last."""
        return self._tools.finish(started, within)

    def make_topic(self) -> None:
        self.finish(self.start("topic.py", workloads.TOPIC, PARTITIONS), 60)

    def arrived(self, count: int) -> dict[str, Any]:
        reading = self.start("consume.py", workloads.TOPIC, count, 90)
        told: dict[str, Any] = json.loads(self.finish(reading, 120))
        return told

    def start_relays(self, replicas: int, **settings: Any) -> None:
        self.namespace.apply(
            workloads.relay_config(**settings), workloads.relay(self.images["relay"], replicas)
        )
        self.namespace.wait_for_rollout("relay")

    def relay_pods(self) -> set[str]:
        return {pod.metadata.name for pod in self.namespace.pods("app=relay")}

    def sql(self, query: str) -> list[str]:
        """One string per row, columns separated by `|`."""
        return self._tools.sql(workloads.DSN, query)


@pytest.fixture
def stage(namespace: Namespace, images: Mapping[str, str]) -> Stage:
    return Stage(namespace, images)


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_events_flow_through_two_pods_which_claim_in_their_names(
    stage: Stage, ordering: str
) -> None:
    stage.make_topic()
    stage.start_relays(2, ordering=ordering, batchSize=50)
    pods = stage.relay_pods()
    emitting = stage.start("emit.py", 6000, 40, 12)
    sent = 6000
    owners: set[str] = set()

    def both_claimed() -> bool:
        nonlocal sent
        stage.sql(MORE.format(first=sent, last=sent + 99))  # there is work for as long as we look
        sent += 100
        owners.update(
            stage.sql(
                "SELECT DISTINCT claimed_by FROM outbox.deliveries WHERE claimed_by IS NOT NULL"
            )
        )
        return owners == pods

    stage.namespace.wait(both_claimed, 90, f"claims of both pods {pods}")
    stage.finish(emitting, 60)
    told = stage.arrived(sent)
    assert told["missing"] == 0
    if ordering == "Key":
        assert told["disorder"] == 0
    states = "SELECT DISTINCT state FROM outbox.deliveries"
    stage.namespace.wait(lambda: stage.sql(states) == ["PUBLISHED"], 60, "all of it written down")


def test_lc_34_a_pod_deleted_by_force_under_load_loses_nothing(stage: Stage) -> None:
    stage.make_topic()
    # Long times: what the other pod sends twice would be for want of an answer in time.
    stage.start_relays(2, ordering="Key", lease="20s", delivery_timeout="15s")
    emitting = stage.start("emit.py", 20_000, 100, 20)
    stage.namespace.wait(
        lambda: int(stage.sql("SELECT count(*) FROM outbox.event")[0]) > 2000, 90, "some load"
    )
    victim = sorted(stage.relay_pods())[0]
    stage.namespace.kube.core.delete_namespaced_pod(
        victim, stage.namespace.name, grace_period_seconds=0
    )
    stage.finish(emitting, 240)
    told = stage.arrived(20_000)
    assert told["missing"] == 0
    assert told["disorder"] == 0
    # What was in flight when it died, at most: a batch of each of its workers.
    assert told["again"] <= 2 * 2000
    stage.namespace.wait_for_rollout("relay")
    assert victim not in stage.relay_pods()


def test_a_cron_job_reaps_what_a_vanished_pod_had_claimed(stage: Stage) -> None:
    stage.make_topic()
    stage.start_relays(1)
    stage.namespace.apply(workloads.relay(stage.images["relay"], 0))
    stage.namespace.wait(lambda: not stage.relay_pods(), 60, "no relay left")
    stage.sql("SELECT outbox.emit('order.placed', '1'::text)")
    stage.sql(
        "SELECT seq FROM outbox.claim("
        "(SELECT id FROM outbox.relay), (SELECT name FROM outbox.relay), 'vanished', 7, 10,"
        " interval '1 second', 0, NULL, false, true)"
    )
    assert stage.sql("SELECT state, claimed_by FROM outbox.deliveries") == ["CLAIMED|vanished"]
    stage.namespace.apply(workloads.reaper(stage.images["relay"]))
    stage.namespace.make_due("reaper")
    stage.namespace.wait(
        lambda: stage.sql("SELECT state FROM outbox.deliveries") == ["PENDING"], 60, "the reaper"
    )
