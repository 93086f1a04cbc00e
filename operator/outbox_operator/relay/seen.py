"""
Seen of a relay: its children, its Secrets and its pods, as plain values.

`gather` fills it, `decide` and `status` judge by it; nothing else reads the cluster. What is common
to all kinds is in `shared.seen`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outbox_core.contract.report import Report
from outbox_operator.shared.seen import Pod, SeenWithPods


@dataclass(frozen=True)
class RelaySeen(SeenWithPods):
    """`pods` are those that relay; one that ended was replaced, and relays no more."""

    retiring: Sequence[Pod] = ()
    """Those that make the database forget the relay; also ended ones, for their termination
    message."""
    mounted: frozenset[str] = frozenset()
    """ConfigMaps of all pods of the relay that have not ended, whatever they are for."""

    @property
    def reports(self) -> list[Report]:
        """Of pods that stay; the backlog is the same in each, the newest knows best."""
        staying = [p.report for p in self.pods if p.report and not p.leaving]
        return sorted(staying, key=lambda r: r.observed_at, reverse=True)
