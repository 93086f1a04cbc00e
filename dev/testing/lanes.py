"""
Lanes: the places in which suites run side by side, each with a cluster of its own.

Called by `__main__`. Two suites never share a cluster at the same time, because some of them stop
its API server, cordon its node or replace the operator; one after the other they do, which saves
its start and the loading of images.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network

from dev.cluster.clusters import chosen
from dev.cluster.existing_cluster import ExistingCluster
from dev.cluster.instance import from_environment

from .suites import Suite

RANGES_BEYOND = 32
"""An instance without a range of its own gets one of that many behind the main one's."""


KEEP = "KEEP"
"""The variable that leaves a cluster running, also for the fixtures of the suites."""


@dataclass(frozen=True)
class Lane:
    number: int
    environ: Mapping[str, str]
    """Of the suites that run in it."""
    has_cluster: bool
    """Of its own; otherwise suites that need one are left to the other lanes."""
    only_waiting: bool = False
    """Only for suites that mostly wait: any other would starve those of the other lanes, and tests
    that measure time would fail."""

    def can_run(self, suite: Suite) -> bool:
        if self.only_waiting:
            return suite.mostly_waits
        if suite.is_scenario:
            return self.number == 1
        return self.has_cluster or not suite.uses_cluster

    def next_of(self, waiting: Iterable[Suite]) -> Suite | None:
        """The suites of e2e run in the first lane alone, one after the other: two of them at once
        starve each other on two cores. It helps the other lanes when it has done them, first with
        what needs a cluster, since its own runs. The other lanes leave that to the end: a second
        cluster takes a fifth of a core from its start on. Suites that mostly wait have a lane of
        their own, and are the last to be helped with."""
        is_first = self.number == 1
        fits = (s for s in waiting if self.can_run(s) and not s.runs_alone)
        return min(  # of several, the first
            fits,
            key=lambda s: (not s.is_scenario, s.mostly_waits, s.uses_cluster is not is_first),
            default=None,
        )


def default_count() -> int:
    """As many as there are processors; one more for suites that mostly wait comes on top."""
    return os.cpu_count() or 1


def make_lanes(count: int, environ: Mapping[str, str]) -> list[Lane]:
    """The first one has the cluster that pytest alone would use."""
    only_one = isinstance(chosen(environ), ExistingCluster)
    numbers = range(1, count + 1)
    lanes = [
        Lane(
            number,
            {**environ, **_instance(number, environ), KEEP: "1"},
            number == 1 or not only_one,
        )
        for number in numbers
    ]
    return [*lanes, Lane(count + 1, environ, has_cluster=False, only_waiting=True)]


@contextmanager
def clusters_taken_down(lanes: Iterable[Lane]) -> Iterator[None]:
    """Afterwards, but for those that were there before, or all with KEEP=1."""
    ours = [lane for lane in lanes if lane.has_cluster and not chosen(lane.environ).is_there]
    try:
        yield
    finally:
        for lane in ours:
            cluster = chosen(lane.environ)
            if cluster.is_there and not os.environ.get(KEEP):
                cluster.down()


def _instance(number: int, environ: Mapping[str, str]) -> dict[str, str]:
    first = from_environment(environ)
    if number == 1:
        return {}
    octets = first.range.network_address.packed
    beyond = (octets[1] + RANGES_BEYOND + number) % 256
    return {
        "OUTBOX_CLUSTER_INSTANCE": f"{first.name[:11]}{number}",  # 12 characters at most
        "OUTBOX_CLUSTER_RANGE": str(IPv4Network((bytes([octets[0], beyond, 0, 0]), 16))),
    }
