"""
The status of a replay: phase, six conditions and the figures.

Judged from the step that was decided, and from the last status: figures stay until a driver reports
new ones, and a finished status is never changed again. While nothing runs, figures that may not be
the last are shown with their time: the operator cannot count itself, and a driver that was killed
does not report its last ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from outbox_core.contract.reasons import ProcessReason
from outbox_core.contract.replay import ReplayReport
from outbox_operator.kinds import ReplayCondition
from outbox_operator.replay.children.names import attempt_name
from outbox_operator.replay.decide.attempt import Going, Starting
from outbox_operator.replay.decide.step import (
    Block,
    Cancel,
    Finish,
    Follow,
    Leave,
    Start,
    Step,
    Suspend,
    TryAgain,
    Wait,
)
from outbox_operator.replay.spec.resource import OutboxReplay, Phase, ReplayStatus
from outbox_operator.shared.checks import Finding, a_child_is_refused, a_name_is_taken
from outbox_operator.shared.conditions import Judged, as_conditions
from outbox_operator.shared.figures import rounded
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Refusal, Restraint, Surroundings
from outbox_operator.shared.silence import CAUSE

NEEDS_NO_PERSON = frozenset(
    {
        Reason.RELAY_MISSING,
        ProcessReason.RELAY_UNKNOWN,
        Reason.PODS_NOT_SCHEDULED,
        Reason.RECONCILE_PAUSED,
    }
)
"""Problems that often end without a person: the relay was created together with the replay, and has
to start; an autoscaler adds a node. And a pause, which somebody requested."""
STAGES: dict[str, Phase] = {"Starting": "Planning", "Planning": "Planning", "Running": "Running"}
"""By the driver's stage: the replay's phase."""
ETA_TOLERANCE = timedelta(seconds=10)
"""A smaller change of the estimate is not reported; otherwise every reconcile would write one."""

Fields = dict[str, Any]


def decide_replay_status(
    replay: OutboxReplay,
    step: Step,
    refusals: Sequence[Refusal],
    now: datetime,
    restraint: Restraint | None = None,
) -> ReplayStatus:
    before = replay.status
    now = now.replace(microsecond=0)
    if isinstance(step, Leave):
        return before
    if refused := _refused(replay, refusals):
        step = _with_refusal(step, refused)
    if restraint is not None:
        step = _restrained(step, restraint)
    fields, why = _fields(replay, step, now)
    fields = {
        "observed_generation": replay.metadata.generation,
        "requested_by": replay.requested_by,
        "message": why.message,
        **fields,
    }
    made = before.model_copy(update=fields)
    judged = _conditions(replay, step, why)
    generation = replay.metadata.generation
    conditions = as_conditions(judged, before.conditions, generation, now)
    return made.model_copy(update={"conditions": conditions})


def _refused(replay: OutboxReplay, refusals: Sequence[Refusal]) -> Finding | None:
    around = Surroundings(refusals=refusals)
    return a_name_is_taken(replay, around) or a_child_is_refused(replay, around)


def _with_refusal(step: Step, refused: Finding) -> Step:
    """What becomes of a step if the API server refused a part of it."""
    match step:
        case Start():
            return Block(refused)
        case Follow(attempt):  # it keeps running
            return Follow(replace(attempt, finding=refused))
    return step


def _restrained(step: Step, restraint: Restraint) -> Step:
    """What becomes of a step that the operator is not to take, or only shows."""
    shown = Finding(restraint.reason, restraint.message)
    match step:
        case Start() | Block() if restraint.blocks_writes:
            return Block(shown)
        case Wait(_, until) if restraint.blocks_writes:
            return Wait(shown, until)
        case Follow(attempt):
            return Follow(replace(attempt, finding=shown))
    return step


# What changes at each step ---------------------------------------------------------------------


def _fields(replay: OutboxReplay, step: Step, now: datetime) -> tuple[Fields, Finding]:
    """The fields that the step changes, and why."""
    before = replay.status
    idle: Fields = {"rate": None, "eta": None}
    match step:
        case Block(finding) | Wait(finding):
            # Without a time the previous attempt would be judged a second time.
            at = (before.next_attempt_time or now) if before.attempts else None
            return {"phase": "Pending", "next_attempt_time": at, **idle}, finding
        case Start(attempt, engine):
            name = attempt_name(replay, attempt)
            started: Fields = {
                "phase": "Pending",
                "attempts": attempt,
                "engine": engine,
                "application": name,
                "start_time": before.start_time or now,
                "next_attempt_time": None,
                **idle,
            }
            return started, Finding(Reason.PENDING, f"{engine} {name} was created")
        case Follow(Going(None, finding, silent=True)):
            text = (
                f"the driver runs, but its figures are not known: {CAUSE}. The operator still "
                "notices when it ends"
            )
            return {"phase": "Running", **idle}, finding or Finding(Reason.NO_REPORT, text)
        case Follow(Going(report, finding)):
            if report is not None:
                phase, text = STAGES.get(report.stage, "Running"), report.message
            elif before.phase is not None and before.phase in STAGES.values():
                phase, text = before.phase, before.message or ""  # silent only for a moment
            else:
                phase, text = "Planning", f"the driver of {before.application} is starting"
            shown = _figures(before, report, now) | {"phase": phase}
            return shown, finding or Finding(phase, text)
        case Follow(starting):
            text = f"waiting for the pod of {before.engine} {before.application}"
            finding = starting.finding or Finding(Reason.PENDING, text)
            return {"phase": before.phase, **idle}, finding
        case TryAgain(over, failures, at):
            what = "was stopped" if over.verdict == "Stopped" else "failed"
            text = (
                f"attempt {before.attempts} {what}: {over.finding.message}; the next one starts "
                f"at {at:%H:%M:%S} UTC and continues from there"
            )
            shown = _figures(before, over.report, now) | idle
            shown |= {"phase": "Pending", "failures": failures or None, "next_attempt_time": at}
            return shown, Finding(over.finding.reason, text)
        case Suspend(report):
            text = "stopped; what is done stays done. To continue, set spec.suspend to false"
            shown = _figures(before, report, now) | idle
            shown |= {"phase": "Suspended", "next_attempt_time": None}
            return shown, _suspended(Finding(Reason.SUSPENDED, text), before, report, now)
        case Finish(phase, finding, over, failures):
            shown = _figures(before, over.report, now) | idle
            if phase == "Failed":
                finding = _dated(finding, before, over.report, now)
            elif not replay.spec.dry_run:
                shown |= {"percent": 100, "progress": "100%"}
                if over.report is None:  # the last known counts are from midway, and so wrong
                    shown |= {"replayed": None, "skipped": None, "skipped_because": {}}
            shown |= {"phase": phase, "completion_time": now, "next_attempt_time": None}
            return shown | {"failures": failures or None}, finding
        case Cancel(report):
            text = "deleted before it was done; what was replayed stays replayed"
            shown = _figures(before, report, now) | idle
            shown |= {"phase": "Cancelled", "completion_time": now, "next_attempt_time": None}
            return shown, _dated(Finding(Reason.CANCELLED, text), before, report, now)
        case _:
            raise AssertionError(step)


def _figures(before: ReplayStatus, report: ReplayReport | None, now: datetime) -> Fields:
    """Empty, so that the known figures stay, until the driver knows its plan."""
    if report is None or report.matched is None:
        return {}
    done = report.replayed + report.skipped
    percent = min(100, done * 100 // report.matched) if report.matched else 100
    made: Fields = {
        "matched": report.matched,
        "replayed": report.replayed,
        "skipped": report.skipped,
        "skipped_because": dict(report.skipped_because),
        "percent": percent,
        "progress": f"{percent}%",
        "rate": rounded(report.rate),
        "eta": _stable_eta(before.eta, now, report.seconds_left),
    }
    if report.preview is not None:  # nothing is replayed: there is no progress to show
        made |= {"preview": report.preview, "percent": None, "progress": None}
        made |= {"replayed": None, "skipped": None}
    return made


def _suspended(
    why: Finding, before: ReplayStatus, report: ReplayReport | None, now: datetime
) -> Finding:
    """Nobody reports once the driver's pod is gone: what was known of the figures then stays."""
    kept = next((c for c in before.conditions if c.type == ReplayCondition.SUSPENDED), None)
    if report is None and kept is not None and kept.status == "True":
        return replace(why, message=kept.message)
    return _dated(why, before, report, now)


def _dated(
    why: Finding, before: ReplayStatus, report: ReplayReport | None, now: datetime
) -> Finding:
    """With the time of the figures, unless they are final, or there are none."""
    if report is not None and report.matched is not None:
        if report.figures_as_of is None:
            return why
        of_when = f"as of {report.figures_as_of:%Y-%m-%d %H:%M:%S} UTC"
    elif before.matched is not None:
        of_when = f"from before {now:%Y-%m-%d %H:%M:%S} UTC"
    else:
        return why
    text = (
        f"{why.message}. The figures are {of_when}, and more may be done: "
        "`outbox-relay replays` shows it"
    )
    return replace(why, message=text)


def _stable_eta(before: datetime | None, now: datetime, seconds: float | None) -> datetime | None:
    """The estimated end. The reported one stays as long as it is about right."""
    if seconds is None:
        return None
    eta = (now + timedelta(seconds=seconds)).replace(microsecond=0)
    if before is not None and abs(eta - before) <= max(ETA_TOLERANCE, (eta - now) / 10):
        return before
    return eta


# The conditions --------------------------------------------------------------------------------


def _conditions(replay: OutboxReplay, step: Step, why: Finding) -> list[Judged]:
    succeeded = isinstance(step, Finish) and step.phase == "Succeeded"
    failed = isinstance(step, Finish) and step.phase == "Failed"
    no_failure = ("False", Reason.AS_EXPECTED, "")
    not_suspended = ("False", Reason.NOT_SUSPENDED, "")
    because = (why.reason, why.message)
    return [
        (ReplayCondition.ACCEPTED, *_accepted(replay, step, why)),
        (
            ReplayCondition.SUSPENDED,
            *(("True", *because) if isinstance(step, Suspend) else not_suspended),
        ),
        (ReplayCondition.COMPLETE, "True" if succeeded else "False", *because),
        (ReplayCondition.FAILED, *(("True", *because) if failed else no_failure)),
        *_reconciling_and_stalled(is_stuck(step), is_under_way(step), why),
    ]


def is_stuck(step: Step) -> bool:
    """It failed, or waits for something that only a person can do."""
    match step:
        case Block(finding) | Follow(Starting(finding)):
            return finding is not None and finding.reason not in NEEDS_NO_PERSON
        case Finish(phase):
            return phase == "Failed"
    return False


def is_under_way(step: Step) -> bool:
    """It will end without a person, as far as can be seen."""
    return not is_stuck(step) and isinstance(step, Block | Wait | Start | Follow | TryAgain)


def _reconciling_and_stalled(stuck: bool, under_way: bool, why: Finding) -> tuple[Judged, Judged]:
    """Reconciling and Stalled, never both True."""
    because = (why.reason, why.message)
    nothing = ("False", Reason.AS_EXPECTED, "")
    return (
        (ReplayCondition.RECONCILING, *(("True", *because) if under_way else nothing)),
        (ReplayCondition.STALLED, *(("True", *because) if stuck else nothing)),
    )


def _accepted(replay: OutboxReplay, step: Step, why: Finding) -> tuple[str, str, str]:
    if isinstance(step, Block):
        return "False", why.reason, why.message
    before = next((c for c in replay.status.conditions if c.type == ReplayCondition.ACCEPTED), None)
    if isinstance(step, Suspend | Cancel):  # the request was not checked now
        if before is None:
            return "Unknown", Reason.PENDING, "checked before the replay starts"
        return before.status, before.reason, before.message
    return "True", Reason.AS_EXPECTED, f"relay {replay.spec.relay_ref.name} can take events back"


def decide_invalid_replay(
    before: ReplayStatus, generation: int, why: str, now: datetime
) -> ReplayStatus:
    """For a spec that the schema accepts but we cannot use. It cannot be corrected either."""
    message = f"{why}. Correct it in another OutboxReplay"
    refused: list[Judged] = [
        (ReplayCondition.ACCEPTED, "False", Reason.SPEC_INVALID, message),
        (ReplayCondition.RECONCILING, "False", Reason.SPEC_INVALID, message),
        (ReplayCondition.STALLED, "True", Reason.SPEC_INVALID, message),
    ]
    return before.model_copy(
        update={
            "observed_generation": generation,
            "phase": before.phase or "Pending",
            "conditions": as_conditions(refused, before.conditions, generation, now),
            "message": message,
        }
    )
