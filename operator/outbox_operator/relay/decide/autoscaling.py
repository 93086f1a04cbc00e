"""
How many pods: up when events wait for too long, down slowly, never up when more pods do not help.

Pure: what must be remembered from look to look is a value that comes in and goes out. It is lost
when the operator restarts, which costs a little time and nothing else.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from outbox_core.contract.values import format_duration
from outbox_operator.relay.spec.autoscaling import Autoscaling
from outbox_operator.shared.reasons import Reason

TRIAL_TIME = timedelta(seconds=75)
"""How long after new pods are ready their worth is judged: rates are those of the last minute."""
LEAST_GAIN = 1.1
"""More pods must raise the rate by a tenth at least, or something else is the limit."""
CEILING_TIME = timedelta(minutes=10)
"""How long the number that did not help is not tried again."""
STORE_BUSY_SHARE = 0.8
"""The share of their work that relays wait for the database, from which on more of them only queue
up there."""
LONGEST_DOUBT = timedelta(hours=1)
"""How long fewer pods are not tried at most, however often they were too few."""


@dataclass(frozen=True)
class Load:
    """What the relays report, put together."""

    lag: float
    """Seconds that the oldest event waits."""
    pending: int
    rate: float
    """Events per second, of all pods that report."""
    store_share: float | None
    """Of the pods' work: waiting for the database. None: not known."""
    well: bool
    """Most pods reach store and broker."""
    pods: int
    """So many report."""
    window: timedelta = timedelta(minutes=1)
    """What the rate is an average of."""

    @property
    def drain(self) -> float:
        """Seconds that the backlog would take at this rate."""
        return self.pending / self.rate if self.rate > 0 else 0.0


@dataclass(frozen=True)
class Trial:
    """Pods were added; was it worth it?"""

    before: int
    ready: int
    """So many are ready when the new ones are, too; an old one that is sick is not waited for."""
    rate: float | None
    """What there was before. None: not known, so there is no verdict, only time to settle."""
    ready_at: datetime | None = None


@dataclass(frozen=True)
class ScaleMemory:
    high_since: datetime | None = None
    low_since: datetime | None = None
    trial: Trial | None = None
    ceiling: int | None = None
    ceiling_until: datetime | None = None
    left: int | None = None
    """The number before the last pod went, until it is known whether the rest is enough."""
    needed: int | None = None
    """So many were needed: with fewer, events waited for too long."""
    returns: int = 0
    """How often in a row fewer than that were too few."""

    def settled(self) -> "ScaleMemory":
        """After a change of the number: how long it has been high or low is counted again."""
        return replace(self, high_since=None, low_since=None, trial=None)


@dataclass(frozen=True)
class Scale:
    replicas: int
    reason: Reason
    message: str
    memory: ScaleMemory


def scale(
    wanted: Autoscaling,
    current: int,
    ready: int,
    load: Load | None,
    memory: ScaleMemory,
    now: datetime,
) -> Scale:
    """`current` is what the Deployment asks for."""
    bounded = min(max(current, wanted.min_replicas), wanted.max_replicas)
    if bounded != current:
        message = "within minReplicas and maxReplicas"
        return Scale(bounded, Reason.SCALING, message, memory.settled())
    if load is None:
        message = "no pod reports how much waits: nothing is decided"
        return Scale(current, Reason.NO_REPORT, message, _interrupted(memory))
    if not load.well:
        message = "most pods do not reach store or broker: more of them would not help"
        return Scale(current, Reason.PODS_NOT_READY, message, _interrupted(memory))
    memory = _noted(wanted, load, memory, now)
    if memory.high_since is not None:
        return _up(wanted, current, ready, load, memory, now)
    memory = replace(memory, trial=None)
    return _down(wanted, current, memory, now)


def _interrupted(memory: ScaleMemory) -> ScaleMemory:
    return replace(memory, high_since=None, low_since=None)


def _noted(wanted: Autoscaling, load: Load, memory: ScaleMemory, now: datetime) -> ScaleMemory:
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


# Up ------------------------------------------------------------------------------------------


def _up(
    wanted: Autoscaling, current: int, ready: int, load: Load, memory: ScaleMemory, now: datetime
) -> Scale:
    high_since = memory.high_since or now
    why = (
        f"the oldest event waits for {load.lag:.0f} s"
        if load.lag > wanted.target_lag_seconds
        else f"the backlog would take {load.drain:.0f} s"
    ) + f", the target is {wanted.target_lag_seconds} s"
    if trial := memory.trial:
        if ready < trial.ready:
            return Scale(current, Reason.SCALING, f"{why}; waiting for new pods", memory)
        since = trial.ready_at or now
        is_whole = load.pods >= ready  # otherwise what a silent one publishes is missed
        if now - since < TRIAL_TIME or (not is_whole and now - since < 2 * TRIAL_TIME):
            memory = replace(memory, trial=replace(trial, ready_at=since))
            return Scale(current, Reason.SCALING, f"{why}; seeing if new pods help", memory)
        if is_whole and trial.rate is not None and load.rate < trial.rate * LEAST_GAIN:
            return _back(wanted, current, trial.before, trial.rate, load, memory, now)
        memory = replace(memory, trial=None)
    if now - high_since < wanted.scale_up_stabilization:
        return Scale(current, Reason.AS_EXPECTED, f"{why}; not for long yet", memory)
    if current >= wanted.max_replicas:
        return Scale(current, Reason.AT_MAXIMUM, f"{why}; maxReplicas is reached", memory)
    most = wanted.max_replicas if memory.ceiling is None else memory.ceiling
    if current >= most:
        message = f"{why}; but more pods did not help a while ago: database or broker is the limit"
        return Scale(current, Reason.STORE_IS_THE_LIMIT, message, memory)
    if load.store_share is not None and load.store_share >= STORE_BUSY_SHARE:
        message = (
            f"{why}; but {load.store_share:.0%} of what pods do is to wait for the database: "
            "more of them would only queue up there"
        )
        return Scale(current, Reason.STORE_IS_THE_LIMIT, message, memory)
    more = min(wanted.max_replicas, most, current + max(1, current // 2))
    # An average from before the burst is too low: whatever comes after it would look like a gain.
    is_honest = now - high_since >= load.window and load.pods >= ready
    trial = Trial(current, ready + more - current, load.rate if is_honest else None)
    memory = replace(_learnt(memory, current).settled(), trial=trial)
    return Scale(more, Reason.SCALING, why, memory)


def _back(
    wanted: Autoscaling,
    current: int,
    before: int,
    rate: float,
    load: Load,
    memory: ScaleMemory,
    now: datetime,
) -> Scale:
    """New pods did not help."""
    back = max(before, wanted.min_replicas)
    message = (
        f"{current} pods publish {load.rate:.0f} events/s, {before} published {rate:.0f}: database "
        "or broker is the limit; not tried again for "
        f"{CEILING_TIME.total_seconds() / 60:.0f} minutes"
    )
    memory = replace(
        memory.settled(), high_since=now, ceiling=back, ceiling_until=now + CEILING_TIME
    )
    return Scale(back, Reason.STORE_IS_THE_LIMIT, message, memory)


def _learnt(memory: ScaleMemory, current: int) -> ScaleMemory:
    """A pod that went is missed."""
    if memory.left is None or current >= memory.left:
        return memory
    returns = memory.returns + 1 if memory.needed == memory.left else 1
    return replace(memory, left=None, needed=memory.left, returns=returns)


# Down ----------------------------------------------------------------------------------------


def _down(wanted: Autoscaling, current: int, memory: ScaleMemory, now: datetime) -> Scale:
    """A steady load that needs all of them lets nothing wait, too: whether fewer are enough is
    only known from trying, which is done half as often every time that it fails."""
    in_doubt = memory.needed is not None and current <= memory.needed
    wait = wanted.scale_down_stabilization
    if in_doubt:
        wait = max(wait, min(wait * 2 ** min(memory.returns, 10), LONGEST_DOUBT))
    if memory.low_since is None or now - memory.low_since < wait:
        message = "the lag is within the target"
        if in_doubt and current == memory.needed:
            message += f"; with fewer pods it was not, they are tried after {format_duration(wait)}"
        return Scale(current, Reason.AS_EXPECTED, message, memory)
    if memory.needed is not None and current < memory.needed:
        memory = replace(memory, needed=None, returns=0)  # fewer are enough now
    memory = replace(memory, left=None)
    if current <= wanted.min_replicas:
        return Scale(current, Reason.AS_EXPECTED, "the lag is within the target", memory)
    message = f"nothing has waited long since {memory.low_since:%H:%M:%S}"
    memory = replace(memory, low_since=now, left=current)
    return Scale(current - 1, Reason.SCALING, message, memory)
