"""
A cluster of three that loses its leader, the server that we are connected to, or its majority:
nothing is lost, no copy is stored, no key gets out of order, and it costs no event an attempt.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.nats.cluster import KEYS, Cluster, Drain, assert_once_and_in_order
from broker.nats.conftest import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services import Nats, wait_until
from fixtures.outbox import Outbox
from fixtures.relays import StartRelay
from outbox_core.model.attempt import Acked, ErrorClass, Refused
from outbox_relay.publishers.nats.publisher import NatsPublisher

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240)]

EVENTS = 4000


@pytest.fixture(scope="module")
def servers(server_folder: Path) -> Iterator[Cluster]:
    with Cluster(server_folder / "nats-cluster") as running:
        yield running


@pytest.fixture
def cluster(servers: Cluster) -> Iterator[Cluster]:
    """One that the test may harm; it is well again afterwards."""
    yield servers
    servers.heal()


Connect = Callable[..., NatsPublisher]


@pytest.fixture
def connect(
    cluster: Cluster, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> Connect:
    # Otherwise a relay begins with any of its servers.
    monkeypatch.setattr(random, "sample", lambda items, _: list(items))

    def make(stream: str, first: Nats, atomic: str, timeout: float = 5) -> NatsPublisher:
        """Connected to that server, as long as it answers."""
        others = [url for url in cluster.urls if url != first.url]
        publisher = make_publisher(
            servers=(first.url, *others),
            subject=f"{stream}.{{event_type}}",
            atomic=atomic,
            in_order=True,
            timeout=timeout,
        )
        publisher.probe()
        return publisher

    return make


@pytest.mark.parametrize(
    ("connected_to", "harmed", "harm", "atomic", "timeout"),
    [
        ("follower", "leader", Nats.kill, "Auto", 5),
        ("leader", "leader", Nats.kill, "Never", 5),
        ("follower", "leader", Nats.pause, "Auto", 2),
        # Less than it takes to find out that one server hangs: the others have their share of it.
        ("leader", "leader", Nats.pause, "Never", 2),
        ("follower", "follower", Nats.kill, "Auto", 5),
        ("follower", "follower", Nats.pause, "Auto", 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_server_that_fails_costs_no_attempt_and_no_copy(
    cluster: Cluster,
    connect: Connect,
    connected_to: str,
    harmed: str,
    harm: Callable[[Nats], None],
    atomic: str,
    timeout: float,
) -> None:
    stream = cluster.make_stream()
    roles = {"leader": cluster.leader(stream), "follower": cluster.followers(stream)[0]}
    publisher = connect(stream, roles[connected_to], atomic, timeout)
    with Drain(publisher) as drain:
        harm(roles[harmed])
        drain.go_on()
    assert drain.charged == []
    assert drain.longest_call_seconds < timeout + 1
    n = len(drain.claims)
    assert_once_and_in_order(cluster.stored(stream, n), n)


def test_a_follower_that_freezes_is_not_noticed(cluster: Cluster, connect: Connect) -> None:
    stream = cluster.make_stream()
    ours, other = cluster.followers(stream)
    with Drain(connect(stream, ours, "Auto")) as drain:
        other.pause()
        drain.go_on()
    assert not drain.refusals
    n = len(drain.claims)
    assert_once_and_in_order(cluster.stored(stream, n), n)


@pytest.mark.parametrize("atomic", ["Auto", "Never"])
def test_leaders_that_change_in_the_middle_of_batches_store_no_copy(
    cluster: Cluster, connect: Connect, atomic: str
) -> None:
    stream = cluster.make_stream()
    publisher = connect(stream, cluster.followers(stream)[0], atomic, 2)
    with Drain(publisher) as drain:
        for _ in range(4):
            cluster.step_down(stream)
        drain.go_on()
    assert drain.charged == []
    stored = cluster.stored(stream, len(drain.claims))
    assert_once_and_in_order(stored, len(drain.claims))
    in_batches = sum(any(name == "Nats-Batch-Id" for name, _ in m.headers) for m in stored)
    assert (in_batches > 0) == (atomic == "Auto")


def test_a_rolling_restart_costs_no_attempt_and_no_copy(cluster: Cluster, connect: Connect) -> None:
    stream = cluster.make_stream()
    publisher = connect(stream, cluster.nodes["n1"], "Auto")
    with Drain(publisher) as drain:
        for node in cluster.nodes.values():
            node.restart()
            cluster.wait_until_whole(stream)
        drain.go_on()
    assert drain.charged == []
    n = len(drain.claims)
    assert_once_and_in_order(cluster.stored(stream, n), n)


def test_a_server_that_announces_its_end_is_left_without_a_refusal(
    cluster: Cluster, connect: Connect
) -> None:
    stream = cluster.make_stream()
    ours = cluster.followers(stream)[0]
    with Drain(connect(stream, ours, "Auto")) as drain:
        os.kill(ours.pid, signal.SIGUSR2)  # lame duck: it tells its clients, waits for them, ends
        wait_until(lambda: not ours.running, 60, "its end")
        drain.go_on()
    assert not drain.refusals
    n = len(drain.claims)
    assert_once_and_in_order(cluster.stored(stream, n), n)


def test_a_stream_without_a_majority_costs_no_attempt_however_long_it_lasts(
    cluster: Cluster, connect: Connect
) -> None:
    stream = cluster.make_stream()
    leader, followers = cluster.leader(stream), cluster.followers(stream)
    with Drain(connect(stream, leader, "Auto", 2)) as drain:
        for node in followers:
            node.kill()
        # First the leader keeps what it cannot store yet, and refuses copies of it; later it
        # notices that it is alone, and leads no more.
        for said in ("OUTAGE NO_ANSWER", "DESTINATION NATS_10158", "OUTAGE NO_JETSTREAM"):
            wait_until(lambda said=said: drain.refusals[said], 60, said)  # type: ignore[misc]
        cluster.heal()
        drain.go_on()
    assert drain.charged == []
    n = len(drain.claims)
    assert_once_and_in_order(cluster.stored(stream, n), n)


def test_a_server_that_lost_its_cluster_is_left_for_another(
    cluster: Cluster, connect: Connect
) -> None:
    stream = cluster.make_stream()
    alone = cluster.followers(stream)[0]
    with cluster.cut_off(alone):
        publisher = connect(stream, alone, "Never", 10)
        claims = [make_claim(event_type=f"type-{n}") for n in range(20)]
        began = time.monotonic()
        outcomes = publisher.publish(claims)
        assert time.monotonic() - began < 5  # who has the subjects is asked once, not for each
        found = [o.error.kind for o in outcomes if isinstance(o, Refused)]
        assert found == [ErrorClass.OUTAGE] * 20, outcomes
        cluster.leader(stream)
        assert all(isinstance(o, Acked) for o in publisher.publish(claims))
    assert len(cluster.stored(stream, 20)) == 20


@pytest.mark.pg
def test_three_relays_of_which_one_is_killed_while_the_leader_is_send_no_copy(
    outbox: Outbox, cluster: Cluster, start_relay: StartRelay
) -> None:
    stream = cluster.make_stream()
    nats = {
        "servers": list(cluster.urls),
        "subject": f"{stream}.{{event_type}}",
        "deliveryTimeout": "2s",
    }
    pods = [
        start_relay(
            outbox.dsn,
            f"pod-{n}",
            ordering="Key",
            lease="3s",
            batchSize=100,
            retry={"maxAttempts": 1},  # one that is charged would be DEAD
            publisher={"nats": nats},
            kafka={"bootstrapServers": "unused:1"},  # what starts no Kafka
        )
        for n in range(3)
    ]
    for pod in pods:
        wait_until(lambda pod=pod: pod.happened("started"), 30, "started")  # type: ignore[misc]
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', (n - 1)::text::bytea, 'k' || (n - 1) %% %s FROM generate_series(1, %s) n",
        KEYS,
        EVENTS,
    )

    def count() -> int:
        return outbox.states().get("PUBLISHED", 0)

    wait_until(lambda: count() > EVENTS // 10, 60, "some published")
    cluster.leader(stream).kill()
    pods[0].kill()
    wait_until(lambda: count() == EVENTS, 120, "all published")
    assert_once_and_in_order(cluster.stored(stream, EVENTS), EVENTS)
