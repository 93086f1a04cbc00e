"""
What was seen of a relay: its children, its Secrets and its pods, as plain values.

`gather` fills it, `decide` and `status` judge by it; nothing else reads the cluster. What all kinds
have is in `shared.seen`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from outbox_core.contract.report import Report
from outbox_operator.shared.seen import Pod, SeenWithPods


@dataclass(frozen=True)
class RelaySeen(SeenWithPods):
    """`pods` are those that relay. Pods that ended are left out: they were replaced."""

    retiring: Sequence[Pod] = ()
    """Pods that retire the relay in the database; ended ones too, for their termination
    message."""
    mounted: frozenset[str] = frozenset()
    """ConfigMaps of all the relay's pods that have not ended, in any role."""
    asked_since: datetime | None = None
    """Since when this process asks the relay's pods."""
    last_report: datetime | None = None
    """When one of them last reported to this process, this time or before. The status is older: it
    is not written for every report."""

    @property
    def reports(self) -> list[Report]:
        """Reports of pods that stay, the newest first: all report the same backlog, and the newest
        report is the most accurate."""
        staying = [p.report for p in self.pods if p.report and not p.terminating]
        return sorted(staying, key=lambda r: r.observed_at, reverse=True)
