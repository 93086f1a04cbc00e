"""
Staged rollout: when a new operator would change the pods of all relays at once, they change one
after another.

Called by the reconciler. A change by a person or of a Secret never waits, nor does a new relay, a
repair, or a change of the number of pods. The cluster shows which relays are done: after a restart
the operator continues with the others.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from outbox_operator.relay.children.deployment import SECRETS_HASH
from outbox_operator.relay.decide.rollout import revision_in_use
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.shared.marks import APPLIED, annotation, digest, is_orphan
from outbox_operator.shared.names import Manifest
from outbox_operator.shared.objects import Body
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Ends, Restraint

STAGED = "Deployment"
"""The child that waits: the pods. The file that the new pods read is in a new ConfigMap."""


class Turns:
    """When each relay may change its pods: one after another, with a pause in between. The first
    may change at once."""

    def __init__(self, pause: timedelta) -> None:
        self.pause = pause
        self._turns: dict[tuple[str, str], datetime] = {}
        self._last: datetime | None = None

    def of(self, relay: tuple[str, str], now: datetime) -> datetime:
        if relay not in self._turns:
            turn = now if self._last is None else max(now, self._last + self.pause)
            self._turns[relay] = self._last = turn
        return self._turns[relay]

    def left(self, relay: tuple[str, str], now: datetime) -> float:
        """Seconds until its turn; infinite if it waits for none."""
        turn = self._turns.get(relay, now)
        return (turn - now).total_seconds() if turn > now else math.inf

    def done(self, relay: tuple[str, str]) -> None:
        """It has changed, or does not have to, or is gone."""
        self._turns.pop(relay, None)


def comes_from_the_operator(
    relay: OutboxRelay, seen: RelaySeen, wanted: Sequence[Manifest]
) -> bool:
    """Whether the pods would change although neither the resource nor its Secrets did: the current
    Deployment was rolled out for this same generation. Otherwise somebody waits for the change, or
    has changed the Deployment: edits and repairs are carried out at once."""
    done, meta = relay.status.rolled_out, relay.metadata
    if done is None or done.generation != meta.generation or meta.deletion_timestamp is not None:
        return False
    if revision_in_use(relay, seen) != done.revision:
        return False
    for child in wanted:
        live = seen.child(child["kind"], child["metadata"]["name"])
        if child["kind"] != STAGED or live is None:
            continue
        if is_orphan(live) or live["spec"].get("paused"):
            return False
        same = _replicas(child) == _replicas(live) and _secrets(child) == _secrets(live)
        return same and annotation(live, APPLIED) not in (None, digest(child))
    return False


def without_staged(seen: RelaySeen, wanted: Sequence[Manifest]) -> list[Manifest]:
    """The children that need not wait. Creating one that does not exist yet disturbs nothing."""
    return [
        child
        for child in wanted
        if child["kind"] != STAGED or seen.child(child["kind"], child["metadata"]["name"]) is None
    ]


def what_waits(turn: datetime, pause: timedelta) -> Restraint:
    return Restraint(
        Ends.BY_ITSELF,
        Reason.ROLLOUT_WAITING,
        "the operator was upgraded or reconfigured, which changes the pods of all relays: one "
        f"relay every {pause.total_seconds():g} s (operator.rolloutDelay), this one at "
        f"{turn:%H:%M:%S} UTC. An edit of the resource does not wait",
        blocks_writes=False,
    )


def _replicas(deployment: Body) -> Any:
    return deployment["spec"].get("replicas", 1)


def _secrets(deployment: Body) -> str | None:
    return annotation(deployment["spec"].get("template") or {"metadata": {}}, SECRETS_HASH)
