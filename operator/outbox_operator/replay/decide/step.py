"""
The next step of a replay: start an attempt, follow it, wait, stop it, or finish.

Attempts are numbered and created one after another, `<replay>-<n>`; each continues where the
previous one stopped, because plan and ledger are in the database. The status records what was
judged: a failure is counted when `nextAttemptTime` is set, and a suspended attempt is no failure.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from outbox_core.contract.reasons import ProcessReason
from outbox_core.contract.replay import ReplayReport
from outbox_operator.replay.decide.attempt import Going, Over, Starting, is_gone, judge_attempt
from outbox_operator.replay.seen import ReplaySeen
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.shared.checks import Finding, a_secret_is_missing
from outbox_operator.shared.reasons import Reason

Engine = Literal["SparkApplication", "Job"]
ENGINES: tuple[Engine, ...] = ("SparkApplication", "Job")
FINISHED = ("Succeeded", "Failed", "Cancelled")

FIRST_RETRY_PAUSE = timedelta(seconds=10)
LONGEST_RETRY_PAUSE = timedelta(minutes=5)
"""The pause between attempts, doubled after each failure."""


@dataclass(frozen=True)
class Leave:
    """It has finished before: it is left as it is, and its status never changes again."""


@dataclass(frozen=True)
class Cancel:
    """The replay is being deleted: every attempt that still exists is removed."""

    report: ReplayReport | None = None


@dataclass(frozen=True)
class Block:
    """Nothing is started: something is wrong with the request, or with what it refers to."""

    finding: Finding


@dataclass(frozen=True)
class Wait:
    """Wait until a time, or until the driver of an earlier attempt is gone."""

    finding: Finding
    until: datetime | None = None


@dataclass(frozen=True)
class Start:
    attempt: int
    engine: Engine


@dataclass(frozen=True)
class Follow:
    attempt: Starting | Going


@dataclass(frozen=True)
class TryAgain:
    """The attempt is over, and another one will follow."""

    over: Over
    failures: int
    at: datetime


@dataclass(frozen=True)
class Suspend:
    """Every attempt that still exists is removed."""

    report: ReplayReport | None = None
    """The last report of the last attempt."""


@dataclass(frozen=True)
class Finish:
    phase: Literal["Succeeded", "Failed"]
    finding: Finding
    over: Over
    failures: int


Step = Leave | Cancel | Block | Wait | Start | Follow | TryAgain | Suspend | Finish


def decide_step(replay: OutboxReplay, seen: ReplaySeen, now: datetime) -> Step:
    before = replay.status
    if before.phase in FINISHED:
        return Leave()
    if replay.metadata.deletion_timestamp is not None:
        return Cancel(last_report(replay, seen))
    attempt = None
    if before.attempts and before.phase != "Suspended" and before.next_attempt_time is None:
        attempt = judge_attempt(replay, seen, now)
    if isinstance(attempt, Over):
        if replay.spec.suspend and attempt.verdict in ("Stopped", "Lost"):
            return Suspend(attempt.report)
        return after(replay, attempt, now)
    if replay.spec.suspend:
        return Suspend(last_report(replay, seen))
    if attempt is not None:
        return Follow(attempt)
    return begin(replay, seen, now)


def last_report(replay: OutboxReplay, seen: ReplaySeen) -> ReplayReport | None:
    """The last report of the last attempt's driver; None some time after its pod is gone."""
    driver = seen.last_of(replay.status.attempts or 0)
    if driver is None:
        return None
    return driver.report if driver.ended is None else driver.ended.report


def after(replay: OutboxReplay, over: Over, now: datetime) -> TryAgain | Finish:
    """What follows an attempt that is over."""
    failures = replay.status.failures or 0
    if over.verdict == "Done":
        return Finish("Succeeded", over.finding, over, failures)
    if over.verdict != "Stopped":
        failures += 1
    if over.verdict == "Final":
        return Finish("Failed", over.finding, over, failures)
    if failures > replay.spec.backoff_limit:
        text = (
            f"{failures} attempts failed, and spec.backoffLimit is {replay.spec.backoff_limit}. "
            f"The last one: {over.finding.reason}: {over.finding.message}. When the cause is "
            "fixed, create another OutboxReplay; what was replayed stays replayed"
        )
        return Finish("Failed", Finding(Reason.BACKOFF_LIMIT_EXCEEDED, text), over, failures)
    return TryAgain(over, failures, (now + pause(failures)).replace(microsecond=0))


def pause(failures: int) -> timedelta:
    return min(LONGEST_RETRY_PAUSE, FIRST_RETRY_PAUSE * (1 << min(max(failures - 1, 0), 10)))


def begin(replay: OutboxReplay, seen: ReplaySeen, now: datetime) -> Block | Wait | Start:
    """Start an attempt, the first or a later one, if nothing prevents it."""
    before = replay.status
    if before.next_attempt_time is not None and before.next_attempt_time > now:
        text = before.message or "the last attempt failed"
        return Wait(Finding(_last_reason(replay), text), before.next_attempt_time)
    if obstacle := first_obstacle(replay, seen):
        return Block(obstacle)
    last = before.attempts or 0
    for driver in seen.drivers:
        # A later attempt is the one that is started now: an operator that ended before it could
        # report the attempt has created it.
        if driver.attempt <= last and driver.ended is None and not is_gone(driver, now):
            text = f"pod {driver.pod.name} of attempt {driver.attempt} has not ended yet"
            return Wait(Finding(Reason.PENDING, text))
    return Start(last + 1, choose_engine(replay, seen))


def _last_reason(replay: OutboxReplay) -> str:
    complete = next((c for c in replay.status.conditions if c.type == "Complete"), None)
    return complete.reason if complete else Reason.PENDING


def choose_engine(replay: OutboxReplay, seen: ReplaySeen) -> Engine:
    """Without executors a Spark operator has no advantage."""
    if not replay.has_executors:
        return "Job"
    return replay.spec.engine or ("SparkApplication" if seen.spark_operator else "Job")


# What prevents a start -------------------------------------------------------------------------


def the_relay_is_missing(replay: OutboxReplay, seen: ReplaySeen) -> Finding | None:
    name, namespace = replay.spec.relay_ref.name, replay.metadata.namespace
    if seen.relay_invalid:
        return Finding(
            Reason.SPEC_INVALID,
            f"the spec of OutboxRelay {name} is invalid: `kubectl describe` it",
        )
    if seen.relay is None:
        return Finding(
            Reason.RELAY_MISSING,
            f"there is no OutboxRelay {name} in namespace {namespace}: create it, or name another "
            "one in another OutboxReplay; `kubectl get obr` lists them",
        )
    if seen.relay.metadata.deletion_timestamp is not None:
        return Finding(Reason.RELAY_MISSING, f"OutboxRelay {name} is being deleted")
    return None


def the_relay_has_not_registered(replay: OutboxReplay, seen: ReplaySeen) -> Finding | None:
    """A report shows that it has; and so does a ready pod, because a pod is not ready before it has
    registered. The kubelet sees that even where the operator does not reach the pod."""
    if seen.relay is None or seen.relay.status.observed_at or seen.relay.status.ready_replicas:
        return None
    return Finding(
        ProcessReason.RELAY_UNKNOWN,
        f"OutboxRelay {seen.relay.metadata.name} has never reported and has no ready pod, so the "
        "database may not know it: the replay starts when a pod is ready, paused or not",
    )


def there_is_no_engine(replay: OutboxReplay, seen: ReplaySeen) -> Finding | None:
    if replay.spec.engine != "SparkApplication" or seen.spark_operator:
        return None
    return Finding(
        Reason.NO_ENGINE,
        "this cluster does not know SparkApplications (sparkoperator.k8s.io/v1beta2): install the "
        "Kubeflow Spark operator; or create an OutboxReplay without `engine`, or with "
        "`engine: Job`, which needs no Spark operator",
    )


def first_obstacle(replay: OutboxReplay, seen: ReplaySeen) -> Finding | None:
    checks = (
        the_relay_is_missing,
        the_relay_has_not_registered,
        a_secret_is_missing,
        there_is_no_engine,
    )
    return next((f for check in checks if (f := check(replay, seen))), None)


def as_paused(replay: OutboxReplay) -> OutboxReplay:
    """The replay as it is judged while reconciliation is paused: a running attempt is not stopped,
    and a suspended replay starts none, whatever `suspend` is now."""
    spec = replay.spec.model_copy(update={"suspend": replay.status.phase == "Suspended"})
    return replay.model_copy(update={"spec": spec})
