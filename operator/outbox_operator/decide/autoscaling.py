"""
How many pods: up when events wait for too long, down slowly, never up when more pods do not help.

Pure: what must be remembered from look to look is a value that comes in and goes out. It is lost
when the operator restarts, which costs a little time and nothing else.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from outbox_operator.resources.autoscaling import Autoscaling
from outbox_operator.resources.conditions import Reason

TRIAL = timedelta(seconds=75)
"""How long after new pods are ready their worth is judged: rates are those of the last minute."""
WORTH = 1.1
"""More pods must raise the rate by a tenth at least, or something else is the limit."""
CEILING = timedelta(minutes=10)
"""How long the number that did not help is not tried again."""
STORE_BUSY = 0.8
"""The share of their time that relays wait for the database, from which on more of them only queue
up there."""


@dataclass(frozen=True)
class Load:
    """What the relays report, put together."""

    lag: float
    """Seconds that the oldest event waits."""
    pending: int
    rate: float
    """Events per second, of all pods."""
    store_share: float | None
    """Of the pods' time: waiting for the database. None: not known."""
    well: bool
    """Store and broker answer."""

    @property
    def drain(self) -> float:
        """Seconds that the backlog would take at this rate."""
        return self.pending / self.rate if self.rate > 0 else 0.0


@dataclass(frozen=True)
class Trial:
    """Pods were added; was it worth it?"""

    before: int
    rate: float
    ready_at: datetime | None = None


@dataclass(frozen=True)
class Memory:
    high_since: datetime | None = None
    low_since: datetime | None = None
    trial: Trial | None = None
    ceiling: int | None = None
    ceiling_until: datetime | None = None


@dataclass(frozen=True)
class Scale:
    replicas: int
    reason: Reason
    message: str
    memory: Memory


def scale(
    wanted: Autoscaling, current: int, ready: int, load: Load | None, memory: Memory, now: datetime
) -> Scale:
    """`current` is what the Deployment asks for."""
    bounded = min(max(current, wanted.min_replicas), wanted.max_replicas)
    if bounded != current:
        return Scale(bounded, Reason.SCALING, "within minReplicas and maxReplicas", Memory())
    if load is None or not load.well:
        return Scale(
            current,
            Reason.NO_REPORT if load is None else Reason.PODS_NOT_READY,
            "store or broker does not answer: more pods would not help",
            replace(memory, high_since=None, low_since=None),
        )
    memory = _noted(wanted, load, memory, now)
    if memory.high_since is not None:
        return _up(wanted, current, ready, load, memory, now)
    memory = replace(memory, trial=None)
    return _down(wanted, current, memory, now)


def _noted(wanted: Autoscaling, load: Load, memory: Memory, now: datetime) -> Memory:
    target = wanted.target_lag_seconds
    high = load.lag > target or load.drain > target
    low = load.lag < target / 2 and load.drain < target / 2
    if memory.ceiling_until is not None and now >= memory.ceiling_until:
        memory = replace(memory, ceiling=None, ceiling_until=None)
    return replace(
        memory,
        high_since=(memory.high_since or now) if high else None,
        low_since=(memory.low_since or now) if low else None,
    )


def _up(
    wanted: Autoscaling, current: int, ready: int, load: Load, memory: Memory, now: datetime
) -> Scale:
    high_since = memory.high_since or now
    why = (
        f"the oldest event waits for {load.lag:.0f} s"
        if load.lag > wanted.target_lag_seconds
        else f"the backlog would take {load.drain:.0f} s"
    ) + f", the target is {wanted.target_lag_seconds} s"
    if trial := memory.trial:
        if ready < current:
            return Scale(current, Reason.SCALING, f"{why}; waiting for new pods", memory)
        since = trial.ready_at or now
        if now - since < TRIAL:
            memory = replace(memory, trial=replace(trial, ready_at=since))
            return Scale(current, Reason.SCALING, f"{why}; seeing if new pods help", memory)
        if load.rate < trial.rate * WORTH:
            back = max(trial.before, wanted.min_replicas)
            message = (
                f"{current} pods publish {load.rate:.0f} events/s, {trial.before} published "
                f"{trial.rate:.0f}: database or broker is the limit; not tried again for "
                f"{CEILING.total_seconds() / 60:.0f} minutes"
            )
            return Scale(
                back,
                Reason.STORE_IS_THE_LIMIT,
                message,
                Memory(high_since=now, ceiling=back, ceiling_until=now + CEILING),
            )
        memory = replace(memory, trial=None)
    if now - high_since < wanted.scale_up_stabilization:
        return Scale(current, Reason.AS_EXPECTED, f"{why}; not for long yet", memory)
    if current >= wanted.max_replicas:
        return Scale(current, Reason.AT_MAXIMUM, f"{why}; maxReplicas is reached", memory)
    if memory.ceiling is not None and current >= memory.ceiling:
        message = f"{why}; but more pods did not help a while ago: database or broker is the limit"
        return Scale(current, Reason.STORE_IS_THE_LIMIT, message, memory)
    if load.store_share is not None and load.store_share >= STORE_BUSY:
        message = (
            f"{why}; but pods wait for the database {load.store_share:.0%} of their time: "
            "more of them would only queue up there"
        )
        return Scale(current, Reason.STORE_IS_THE_LIMIT, message, memory)
    more = min(wanted.max_replicas, current + max(1, current // 2))
    return Scale(more, Reason.SCALING, why, Memory(trial=Trial(current, load.rate)))


def _down(wanted: Autoscaling, current: int, memory: Memory, now: datetime) -> Scale:
    if (
        current > wanted.min_replicas
        and memory.low_since is not None
        and now - memory.low_since >= wanted.scale_down_stabilization
    ):
        message = f"nothing has waited long since {memory.low_since:%H:%M:%S}"
        return Scale(current - 1, Reason.SCALING, message, replace(memory, low_since=now))
    return Scale(current, Reason.AS_EXPECTED, "the lag is within the target", memory)
