"""
The state of an attempt at a replay, judged from its Job or SparkApplication and its driver's pod.

The driver's termination message counts first, then its exit code, then the status of its owner: the
message is lost when the pod is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from outbox_core.contract.reasons import ProcessReason
from outbox_core.contract.replay import Exit, ReplayReport
from outbox_operator.replay.seen import Driver, Ended, ReplaySeen
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.shared.checks import (
    Finding,
    a_pod_finds_no_node,
    a_secret_is_malformed,
    an_image_is_not_pulled,
)
from outbox_operator.shared.objects import Body
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Pod, SeenWithPods
from outbox_operator.shared.silence import SILENT_AFTER

SETTLE_TIME = timedelta(seconds=5)
"""How long the end of a Job and the end of its pod may be seen apart: they come from two watches,
and either may lag."""
FIRST_POD_TIME = timedelta(seconds=30)
"""How long the first pod may take. After that something blocks it, and that is shown."""

CANNOT_START = {126, 127, 128}
"""Exit codes of a container whose program is missing, or is not executable."""
KILLED = {137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}

MAY_PASS = {
    ProcessReason.WRONG_PASSWORD,
    ProcessReason.LOGIN_REFUSED,
    ProcessReason.TLS_FAILED,
    ProcessReason.SCHEMA_TOO_NEW,
}
"""Problems that may pass although the driver calls them final, if an earlier attempt got past them:
a secret is being changed, or an upgrade is under way."""

POD_CHECKS = (an_image_is_not_pulled, a_secret_is_malformed, a_pod_finds_no_node)


@dataclass(frozen=True)
class Starting:
    """There is no driver yet."""

    finding: Finding | None = None
    """What blocks it."""


@dataclass(frozen=True)
class Going:
    report: ReplayReport | None
    finding: Finding | None = None
    silent: bool = False
    """It works, as far as can be seen from outside, but has not answered for a while."""


@dataclass(frozen=True)
class Over:
    verdict: Literal["Done", "Again", "Stopped", "Lost", "Final"]
    """Again: it failed, and another attempt may succeed. Stopped: somebody stopped it, which is no
    failure. Lost: its pod, Job or SparkApplication is gone. Final: no attempt can succeed."""
    finding: Finding
    report: ReplayReport | None = None


Attempt = Starting | Going | Over


def judge_attempt(replay: OutboxReplay, seen: ReplaySeen, now: datetime) -> Attempt:
    """Judge the attempt that was started last."""
    driver = seen.driver(replay.status.attempts or 0)
    if driver is not None and driver.ended is not None:
        return judge_end(replay, driver, driver.ended)
    kind, name = replay.status.engine or "Job", replay.status.application or ""
    child = seen.child(kind, name)
    if child is None or "deletionTimestamp" in child["metadata"]:
        return Over("Lost", Finding(Reason.DRIVER_LOST, f"somebody deleted {kind} {name}"))
    end = end_of(kind, name, child)
    if end is not None and is_gone(driver, now) and now - end.at >= SETTLE_TIME:
        if end.means.verdict == "Done" and replay.spec.dry_run:
            text = f"the pod of {kind} {name} is gone, and what the dry run found is lost"
            return Over("Lost", Finding(Reason.DRIVER_LOST, text))
        return end.means
    if driver is None:
        return Starting(nothing_happens(replay, kind, name, child, now))
    if driver.running:
        silent = driver.report is None and driver.silent >= SILENT_AFTER
        return Going(driver.report, no_executor_works(replay, seen), silent)
    return Starting(pod_finding(replay, [driver.pod], seen))


def is_gone(driver: Driver | None, now: datetime) -> bool:
    """Also if nothing reports its end any more, because its node is gone too."""
    if driver is None:
        return True
    return driver.kill_deadline is not None and now - driver.kill_deadline >= SETTLE_TIME


# A driver that ended ---------------------------------------------------------------------------


def judge_end(replay: OutboxReplay, driver: Driver, ended: Ended) -> Over:
    report = ended.report
    if report is None or not report.ended:
        return without_end(replay, driver, ended)
    if report.stage == "Succeeded":
        return Over("Done", Finding(Reason.SUCCEEDED, report.message), report)
    if report.stage == "Stopped":
        text = f"somebody stopped pod {driver.pod.name}"
        return Over("Stopped", Finding(Reason.DRIVER_LOST, text), report)
    reason = report.reason or ProcessReason.ENGINE_FAILED
    passes = reason in MAY_PASS and (replay.status.attempts or 0) > 1
    is_final = ended.exit_code == Exit.FINAL and not passes
    verdict: Literal["Final", "Again"] = "Final" if is_final else "Again"
    return Over(verdict, Finding(reason, report.message or how_it_ended(ended)), report)


def without_end(replay: OutboxReplay, driver: Driver, ended: Ended) -> Over:
    """The driver did not report why it ended."""
    namespace, pod = replay.metadata.namespace, driver.pod.name
    log = f"check `kubectl logs -n {namespace} {pod}`"
    # A program that is not ours leaves no report; Python ends with 2 if the file does not exist.
    if ended.report is None and ended.exit_code in {Exit.DONE, Exit.FINAL, *CANNOT_START}:
        return Over(
            "Final",
            Finding(
                Reason.DRIVER_MISSING,
                f"pod {pod} {how_it_ended(ended)} without a report: its image does not contain "
                "the program that replays. Create another OutboxReplay whose spec.pod.image is the "
                f"outbox-spark of this version, or leave that field out; {log}",
            ),
        )
    cure = "; raise spec.driver.memory" if ended.cause == "OOMKilled" else ""
    text = f"pod {pod} {how_it_ended(ended)} without a report of its end{cure}; {log}"
    return Over("Again", Finding(Reason.DRIVER_LOST, text), ended.report)


def how_it_ended(ended: Ended) -> str:
    if ended.exit_code is None:
        return f"ended ({ended.cause or 'its node is gone'})"
    why = ", ".join(w for w in (ended.cause, KILLED.get(ended.exit_code, "")) if w)
    return f"ended with {ended.exit_code}" + (f" ({why})" if why else "")


# Its owner's status ----------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    at: datetime
    means: Over


def end_of(kind: str, name: str, child: Body) -> End | None:
    status = child.get("status") or {}
    return (_end_of_job if kind == "Job" else _end_of_application)(name, status)


def _end_of_job(name: str, status: Body) -> End | None:
    for condition in status.get("conditions") or ():
        if condition["status"] != "True" or condition["type"] not in ("Complete", "Failed"):
            continue
        at = datetime.fromisoformat(condition["lastTransitionTime"])
        if condition["type"] == "Complete":
            return End(at, Over("Done", Finding(Reason.SUCCEEDED, complete("Job", name))))
        why = condition.get("message", "")
        text = f"the pod of Job {name} is gone ({why})"
        return End(at, Over("Lost", Finding(Reason.DRIVER_LOST, text)))
    return None


def _end_of_application(name: str, status: Body) -> End | None:
    state = status.get("applicationState") or {}
    if state.get("state") not in ("COMPLETED", "FAILED"):
        return None
    at = datetime.fromisoformat(status.get("terminationTime") or "1970-01-01T00:00:00Z")
    if state["state"] == "COMPLETED":
        text = complete("SparkApplication", name)
        return End(at, Over("Done", Finding(Reason.SUCCEEDED, text)))
    why = tail_of(state.get("errorMessage", ""))
    text = f"SparkApplication {name} failed: {why}"
    return End(at, Over("Again", Finding(ProcessReason.ENGINE_FAILED, text)))


def complete(kind: str, name: str) -> str:
    return (
        f"{kind} {name} is complete; its pod is gone, and the counts of replayed and skipped "
        "events with it: `outbox-relay replays` shows them"
    )


def tail_of(text: str, longest: int = 500) -> str:
    """The end of spark-submit's long message, where the cause is."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"…{line[-longest:]}"


# What blocks it --------------------------------------------------------------------------------


def nothing_happens(
    replay: OutboxReplay, kind: str, name: str, child: Body, now: datetime
) -> Finding | None:
    made = datetime.fromisoformat(child["metadata"]["creationTimestamp"])
    if now - made < FIRST_POD_TIME or replay.status.phase != "Pending":
        return None  # it is too early, or there was a pod a moment ago
    where = replay.metadata.namespace
    state = ((child.get("status") or {}).get("applicationState") or {}).get("state")
    if kind == "SparkApplication" and not state:
        return Finding(
            Reason.NO_ENGINE,
            f"no Spark operator has accepted SparkApplication {name}: check that it runs and "
            f"watches namespace {where}; or create an OutboxReplay with `engine: Job`",
        )
    return Finding(
        Reason.PODS_NOT_CREATED,
        f"{kind} {name} has no pod yet: `kubectl describe {kind.lower()} -n {where} {name}` shows "
        "why, such as a quota, pod security or an admission webhook",
    )


def no_executor_works(replay: OutboxReplay, seen: ReplaySeen) -> Finding | None:
    """Executors that cannot start are no problem while others work."""
    if any(pod.ready for pod in seen.executors):
        return None
    return pod_finding(replay, seen.executors, seen)


def pod_finding(replay: OutboxReplay, pods: Sequence[Pod], seen: ReplaySeen) -> Finding | None:
    around = SeenWithPods(pods=pods, secrets=seen.secrets)
    found = next((f for check in POD_CHECKS if (f := check(replay, around))), None)
    if found is None or found.reason == Reason.SECRET_MALFORMED:
        return found
    cure = "the spec cannot be changed: if it is wrong, create another OutboxReplay"
    return Finding(found.reason, f"{found.message}; {cure}")
