"""
The next step of a replay: start an attempt, follow it, wait, stop it, or call it finished.

Attempts are numbered and made one after another, `<replay>-<n>`; each goes on where the one before
it ended, because plan and ledger are in the database. What was judged once is in the status: a
failure is counted when `nextAttemptTime` is set, and an attempt that was suspended is none.
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
"""Between attempts, doubled from failure to failure."""


@dataclass(frozen=True)
class Finished:
    """It was before: its status never changes again."""


@dataclass(frozen=True)
class Cancel:
    """Somebody deletes it: every attempt that is still there is ended."""

    report: ReplayReport | None = None


@dataclass(frozen=True)
class Block:
    """Nothing is started: the request, or what it refers to, is not as it must be."""

    finding: Finding


@dataclass(frozen=True)
class Wait:
    """For the time, or until the driver of an earlier attempt is gone."""

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
    """The attempt is over, and another one follows."""

    over: Over
    failures: int
    at: datetime


@dataclass(frozen=True)
class Suspend:
    """Every attempt that is still there is ended."""

    report: ReplayReport | None = None
    """The last report of the last one."""


@dataclass(frozen=True)
class Finish:
    phase: Literal["Succeeded", "Failed"]
    finding: Finding
    over: Over
    failures: int


Step = Finished | Cancel | Block | Wait | Start | Follow | TryAgain | Suspend | Finish


def decide_step(replay: OutboxReplay, seen: ReplaySeen, now: datetime) -> Step:
    before = replay.status
    if before.phase in FINISHED:
        return Finished()
    if replay.metadata.deletion_timestamp is not None:
        return Cancel(said_last(replay, seen))
    attempt = None
    if before.attempts and before.phase != "Suspended" and before.next_attempt_time is None:
        attempt = judge_attempt(replay, seen, now)
    if isinstance(attempt, Over):
        if replay.spec.suspend and attempt.verdict in ("Stopped", "Lost"):
            return Suspend(attempt.report)
        return after(replay, attempt, now)
    if replay.spec.suspend:
        return Suspend(said_last(replay, seen))
    if attempt is not None:
        return Follow(attempt)
    return begin(replay, seen, now)


def said_last(replay: OutboxReplay, seen: ReplaySeen) -> ReplayReport | None:
    """By the driver of the last attempt, as long as its pod is there."""
    driver = seen.driver(replay.status.attempts or 0)
    if driver is None:
        return None
    return driver.report if driver.ended is None else driver.ended.words


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
            f"The last: {over.finding.reason}: {over.finding.message}. When the cause is gone, "
            "create another OutboxReplay; what was replayed stays so"
        )
        return Finish("Failed", Finding(Reason.BACKOFF_LIMIT_EXCEEDED, text), over, failures)
    return TryAgain(over, failures, (now + pause(failures)).replace(microsecond=0))


def pause(failures: int) -> timedelta:
    return min(LONGEST_RETRY_PAUSE, FIRST_RETRY_PAUSE * (1 << min(max(failures - 1, 0), 10)))


def begin(replay: OutboxReplay, seen: ReplaySeen, now: datetime) -> Block | Wait | Start:
    """An attempt is to be started, the first or another one."""
    before = replay.status
    if before.next_attempt_time is not None and before.next_attempt_time > now:
        text = before.message or "the last attempt failed"
        return Wait(Finding(_last_reason(replay), text), before.next_attempt_time)
    if obstacle := first_obstacle(replay, seen):
        return Block(obstacle)
    last = before.attempts or 0
    for driver in seen.drivers:
        # One of a later attempt is that which is started now: an operator that ended before it
        # could report it has made it.
        if driver.attempt <= last and driver.ended is None and not is_gone(driver, now):
            text = f"pod {driver.pod.name} of attempt {driver.attempt} has not ended yet"
            return Wait(Finding(Reason.PENDING, text))
    return Start(last + 1, choose_engine(replay, seen))


def _last_reason(replay: OutboxReplay) -> str:
    complete = next((c for c in replay.status.conditions if c.type == "Complete"), None)
    return complete.reason if complete else Reason.PENDING


def choose_engine(replay: OutboxReplay, seen: ReplaySeen) -> Engine:
    """Where there are no executors, there is nothing that a Spark operator could do better."""
    if not replay.has_executors:
        return "Job"
    return replay.spec.engine or ("SparkApplication" if seen.spark_operator else "Job")


# What must be so before anything is started ----------------------------------------------------


def the_relay_is_missing(replay: OutboxReplay, seen: ReplaySeen) -> Finding | None:
    name, namespace = replay.spec.relay_ref.name, replay.metadata.namespace
    if seen.relay_invalid:
        return Finding(
            Reason.SPEC_INVALID, f"OutboxRelay {name} cannot be understood: `kubectl describe` it"
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
    """Its report shows it; and a pod is not ready before it has registered, which the kubelet sees
    also where the operator does not reach the pod."""
    if seen.relay is None or seen.relay.status.observed_at or seen.relay.status.ready_replicas:
        return None
    return Finding(
        ProcessReason.RELAY_UNKNOWN,
        f"OutboxRelay {seen.relay.metadata.name} has never reported and has no ready pod, so the "
        "database may not know it: the replay begins when one is ready, paused or not",
    )


def there_is_no_engine(replay: OutboxReplay, seen: ReplaySeen) -> Finding | None:
    if replay.spec.engine != "SparkApplication" or seen.spark_operator:
        return None
    return Finding(
        Reason.NO_ENGINE,
        "this cluster does not know SparkApplications (sparkoperator.k8s.io/v1beta2): install "
        "Kubeflow's Spark operator; or create an OutboxReplay without `engine`, or with "
        "`engine: Job`, which needs none",
    )


def first_obstacle(replay: OutboxReplay, seen: ReplaySeen) -> Finding | None:
    checks = (
        the_relay_is_missing,
        the_relay_has_not_registered,
        a_secret_is_missing,
        there_is_no_engine,
    )
    return next((f for check in checks if (f := check(replay, seen))), None)


def as_left_alone(replay: OutboxReplay) -> OutboxReplay:
    """As it is judged while it is paused: nobody ends an attempt that runs, or starts one after it
    was suspended, whatever `suspend` is since."""
    spec = replay.spec.model_copy(update={"suspend": replay.status.phase == "Suspended"})
    return replay.model_copy(update={"spec": spec})
