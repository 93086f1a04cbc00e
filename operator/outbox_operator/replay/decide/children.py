"""
The children of a replay at each step.

Account, rights and settings are kept up to date while an attempt is created or runs; an attempt
itself is created once. When no driver is left that needs them, account and rights are removed, so
that nobody can use them, and they are in nobody's way.
"""

from dataclasses import dataclass, field

from outbox_operator.replay.children.access import build_replay_account, build_role_binding
from outbox_operator.replay.children.config_map import build_replay_config
from outbox_operator.replay.children.job import build_job
from outbox_operator.replay.children.spark_application import build_spark_application
from outbox_operator.replay.decide.step import (
    ENGINES,
    Cancel,
    Finish,
    Follow,
    Leave,
    Start,
    Step,
    Suspend,
)
from outbox_operator.replay.seen import ReplaySeen
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Restraint

ACCESS = ("RoleBinding", "ServiceAccount")


@dataclass(frozen=True)
class ReplayChildren:
    wanted: list[Manifest] = field(default_factory=list)
    attempt: Manifest | None = None
    """To be created, unless it already exists."""
    unwanted: list[tuple[str, str]] = field(default_factory=list)
    """Kind and name."""


def decide_replay_children(
    replay: OutboxReplay, seen: ReplaySeen, step: Step, operator: OperatorSettings
) -> ReplayChildren:
    if isinstance(step, (Suspend, Cancel)):
        # A deletion that waits for others (foreground, another finalizer) also ends the work.
        attempts = [key for key in seen.children if key[0] in ENGINES]
        return ReplayChildren(unwanted=[*attempts, *unneeded_access(seen)])
    if isinstance(step, (Finish, Leave)):
        return ReplayChildren(unwanted=unneeded_access(seen))
    relay = seen.relay
    if relay is None or not isinstance(step, (Start, Follow)):
        return ReplayChildren()
    optional = [
        (build_replay_account(replay), replay.spec.pod.service_account_name is None),
        (build_role_binding(replay, operator), replay.has_executors),
    ]
    wanted = [child for child, is_wanted in optional if is_wanted]
    wanted.append(build_replay_config(replay, relay, operator))
    if not isinstance(step, Start):
        return ReplayChildren(wanted)
    build = build_job if step.engine == "Job" else build_spark_application
    return ReplayChildren(wanted, build(replay, relay, operator, step.attempt))


def unneeded_access(seen: ReplaySeen) -> list[tuple[str, str]]:
    """Only after every driver has ended: a driver that is stopped removes its executors."""
    if any(driver.ended is None for driver in seen.drivers):
        return []
    return [key for key in seen.children if key[0] in ACCESS]


def only_removals(children: ReplayChildren, step: Step, restraint: Restraint) -> ReplayChildren:
    """What is still done while no child may be written: a person who suspends or deletes a replay
    still stops it. While reconciliation is paused, nothing is removed either, unless the replay
    itself is being deleted."""
    stops = isinstance(step, Cancel) or restraint.reason != Reason.RECONCILE_PAUSED
    return ReplayChildren(unwanted=children.unwanted if stops else [])
