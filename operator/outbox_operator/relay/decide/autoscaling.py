"""
How many pods: up when events wait too long, down slowly, never up when more pods do not help.

Pure: what must be remembered from one reconcile to the next is a value that comes in and goes out.
A restart of the operator loses it, which costs a little time and nothing else.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from outbox_core.contract.values import format_duration
from outbox_operator.relay.spec.autoscaling import Autoscaling
from outbox_operator.shared.reasons import Reason

TRIAL_TIME = timedelta(seconds=75)
"""How long after new pods are ready their effect is judged: rates cover the last minute."""
LEAST_GAIN = 1.1
"""The factor by which more pods must raise the rate; otherwise something else is the limit."""
CEILING_TIME = timedelta(minutes=10)
"""How long a number of pods that did not help is not tried again."""
STORE_BUSY_SHARE = 0.8
"""The share of their work that pods spend waiting for the database above which more pods would only
queue there."""
LONGEST_DOUBT = timedelta(hours=1)
"""The longest time until fewer pods are tried again, however often they were too few."""


@dataclass(frozen=True)
class Load:
    """The reports of all pods, combined."""

    lag: float
    """How long the oldest event has waited, in seconds."""
    pending: int
    rate: float
    """Events per second, of all pods that report."""
    store_share: float | None
    """The share of the pods' work that is waiting for the database. None: not known."""
    healthy: bool
    """Most pods reach store and broker."""
    pods: int
    """The number of pods that report."""
    window: timedelta = timedelta(minutes=1)
    """The period that the rate is averaged over."""

    @property
    def drain(self) -> float:
        """How long the backlog would take at this rate, in seconds."""
        return self.pending / self.rate if self.rate > 0 else 0.0


@dataclass(frozen=True)
class ScaleUpTrial:
    """Pods were added: do they help?"""

    before: int
    """The number of pods before."""
    ready: int
    """The number of ready pods that includes the new ones; an old pod that is not ready is not
    waited for."""
    rate: float | None
    """The rate before. None: not known, so there is no judgement, only time to settle."""
    ready_at: datetime | None = None


@dataclass(frozen=True)
class ScaleMemory:
    high_since: datetime | None = None
    low_since: datetime | None = None
    trial: ScaleUpTrial | None = None
    ceiling: int | None = None
    ceiling_until: datetime | None = None
    left: int | None = None
    """The number of pods before the last one was removed, until it is known whether the rest are
    enough."""
    needed: int | None = None
    """The number that was needed: with fewer pods, events waited too long."""
    returns: int = 0
    """How many times in a row fewer pods than that were too few."""

    def settled(self) -> "ScaleMemory":
        """After a change of the number: the time that the lag is high or low starts again."""
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
    """`current` is the number that the Deployment requests."""
    bounded = min(max(current, wanted.min_replicas), wanted.max_replicas)
    if bounded != current:
        message = "brought within minReplicas and maxReplicas"
        return Scale(bounded, Reason.SCALING, message, memory.settled())
    if load is None:
        message = "no pod reports the backlog: the number of pods stays"
        return Scale(current, Reason.NO_REPORT, message, _interrupted(memory))
    if not load.healthy:
        message = "most pods do not reach store or broker: more of them would not help"
        return Scale(current, Reason.PODS_NOT_READY, message, _interrupted(memory))
    memory = _noted(wanted, load, memory, now)
    if memory.high_since is not None:
        return _up(wanted, current, ready, load, memory, now)
    memory = replace(memory, trial=None)
    return _down(wanted, current, memory, now)


def is_at_rest(wanted: Autoscaling, decided: Scale) -> bool:
    """Whether the same load leads to the same decision at any later time: there are as few pods as
    allowed, nothing waits for long, and no trial is going on."""
    memory = decided.memory
    calm = memory.high_since is None and memory.needed is None and memory.left is None
    return calm and decided.replicas <= wanted.min_replicas


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
        f"the oldest event has waited for {load.lag:.0f} s"
        if load.lag > wanted.target_lag_seconds
        else f"the backlog would take {load.drain:.0f} s"
    ) + f", the target is {wanted.target_lag_seconds} s"
    if trial := memory.trial:
        if ready < trial.ready:
            return Scale(current, Reason.SCALING, f"{why}; waiting for new pods", memory)
        since = trial.ready_at or now
        all_report = load.pods >= ready  # otherwise the rate lacks what silent pods publish
        if now - since < TRIAL_TIME or (not all_report and now - since < 2 * TRIAL_TIME):
            memory = replace(memory, trial=replace(trial, ready_at=since))
            message = f"{why}; measuring whether the new pods help"
            return Scale(current, Reason.SCALING, message, memory)
        if all_report and trial.rate is not None and load.rate < trial.rate * LEAST_GAIN:
            return _back(wanted, current, trial.before, trial.rate, load, memory, now)
        memory = replace(memory, trial=None)
    if now - high_since < wanted.scale_up_stabilization:
        return Scale(
            current, Reason.AS_EXPECTED, f"{why}; waiting for scaleUpStabilization", memory
        )
    if current >= wanted.max_replicas:
        return Scale(current, Reason.AT_MAXIMUM, f"{why}; maxReplicas is reached", memory)
    most = wanted.max_replicas if memory.ceiling is None else memory.ceiling
    if current >= most:
        message = f"{why}; more pods did not help a while ago: database or broker is the limit"
        return Scale(current, Reason.MORE_PODS_DO_NOT_HELP, message, memory)
    if load.store_share is not None and load.store_share >= STORE_BUSY_SHARE:
        message = (
            f"{why}; pods spend {load.store_share:.0%} of their work waiting for the database: "
            "more of them would only queue there"
        )
        return Scale(current, Reason.MORE_PODS_DO_NOT_HELP, message, memory)
    more = min(wanted.max_replicas, most, current + max(1, current // 2))
    # A rate that includes the time before the burst is too low: any later rate would look like a
    # gain.
    is_comparable = now - high_since >= load.window and load.pods >= ready
    trial = ScaleUpTrial(current, ready + more - current, load.rate if is_comparable else None)
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
        "or broker is the limit; more pods are not tried again for "
        f"{CEILING_TIME.total_seconds() / 60:.0f} minutes"
    )
    memory = replace(
        memory.settled(), high_since=now, ceiling=back, ceiling_until=now + CEILING_TIME
    )
    return Scale(back, Reason.MORE_PODS_DO_NOT_HELP, message, memory)


def _learnt(memory: ScaleMemory, current: int) -> ScaleMemory:
    """Scaling up again shows that the removed pod was needed."""
    if memory.left is None or current >= memory.left:
        return memory
    returns = memory.returns + 1 if memory.needed == memory.left else 1
    return replace(memory, left=None, needed=memory.left, returns=returns)


# Down ----------------------------------------------------------------------------------------


def _down(wanted: Autoscaling, current: int, memory: ScaleMemory, now: datetime) -> Scale:
    """A steady load that needs all pods also keeps the lag low: only a trial shows whether fewer
    are enough. After each failed trial the next one waits twice as long."""
    in_doubt = memory.needed is not None and current <= memory.needed
    wait = wanted.scale_down_stabilization
    if in_doubt:
        wait = max(wait, min(wait * 2 ** min(memory.returns, 10), LONGEST_DOUBT))
    if memory.low_since is None or now - memory.low_since < wait:
        message = "the lag is within the target"
        if in_doubt and current == memory.needed:
            message += (
                f"; with fewer pods it was not; fewer are tried again in {format_duration(wait)}"
            )
        return Scale(current, Reason.AS_EXPECTED, message, memory)
    if memory.needed is not None and current < memory.needed:
        memory = replace(memory, needed=None, returns=0)  # fewer are enough now
    memory = replace(memory, left=None)
    if current <= wanted.min_replicas:
        return Scale(current, Reason.AS_EXPECTED, "the lag is within the target", memory)
    message = f"nothing has waited long since {memory.low_since:%H:%M:%S}"
    memory = replace(memory, low_since=now, left=current)
    return Scale(current - 1, Reason.SCALING, message, memory)
