"""
Moves: what may be done to a delivery by hand, and how.

Called by `intervene.interventions`. Pure: a planner takes a locked delivery and returns a plan,
which is either a refusal, or the statements to execute. Each statement repeats the state that it
starts from, so that it can never do anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from outbox_core.contract.values import format_duration
from outbox_core.model.attempt import Error, ErrorClass
from outbox_core.model.lifecycle import Hold, State


class Target(NamedTuple):
    """One delivery, locked."""

    relay_id: int
    seq: int
    relay: str
    active: bool
    ordered: bool
    ordering_key: str | None
    state: State
    hold: Hold
    is_due: bool
    lease_ended: bool
    claimed_by: str | None
    attempts_in_budget: int
    max_attempts: int | None
    last_publication: str | None
    waits_for: str | None
    """If hold is KEY: the event in front of it, in words."""
    published_later: int
    """Later events of its key that are already published."""
    before: dict[str, Any]


@dataclass
class Move:
    """The refusal, or why there is nothing to do (unchanged), or the statements to execute."""

    refusal: str | None = None
    unchanged: str | None = None
    statements: list[str] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    detail: str = ""
    warnings: list[str] = field(default_factory=list)


# A relay finds waiting deliveries by hold and available_at; one that is suspected of killing relays
# stays a suspect, and so is sent alone. Its age counts from the new time, too.
DUE_AT = """
    UPDATE outbox.delivery d SET
           available_at = coalesce(%(at)s::timestamptz, now() + %(delay)s::interval),
           age_from = coalesce(%(at)s::timestamptz, now() + %(delay)s::interval),
           hold = CASE d.hold WHEN 'SUSPECT' THEN d.hold ELSE 'TIME' END
     WHERE d.relay_id = %(relay_id)s AND d.seq = %(seq)s AND d.state = 'PENDING'
"""

# PENDING becomes DEAD only through a claim; this claim is not an attempt, so none is counted.
CLAIM = """
    UPDATE outbox.delivery d SET
           state = 'CLAIMED', hold = 'NONE', available_at = least(d.available_at, now()),
           claimed_at = now(), claimed_by = %(actor)s, lease_until = now(),
           claim_token = 0
     WHERE d.relay_id = %(relay_id)s AND d.seq = %(seq)s AND d.state = 'PENDING'
"""
BURY = """
    UPDATE outbox.delivery d SET
           state = 'DEAD', hold = %(hold)s::outbox.hold, crashes = 0,
           last_error = %(error)s::jsonb || jsonb_build_object('at', now()),
           claimed_at = NULL, claimed_by = NULL, claim_token = NULL, lease_until = NULL
     WHERE d.relay_id = %(relay_id)s AND d.seq = %(seq)s AND d.state = 'CLAIMED'
"""

# The same move as in bulk replays: `schema/functions/replay_moves.sql`.
REPLAY = "SELECT outbox.replay_one(%(relay_id)s, %(seq)s, %(replay_id)s, %(reset)s)"

SKIP = """
    UPDATE outbox.delivery d SET hold = 'NONE'
     WHERE d.relay_id = %(relay_id)s AND d.seq = %(seq)s AND d.state = 'DEAD' AND d.hold = 'DEAD'
"""

# Events that waited behind it no longer do.
RELEASE = "SELECT outbox.release_behind(%(relay_id)s, ARRAY[%(seq)s::bigint])"

AT_ONCE = timedelta()


def plan_retry(target: Target) -> Move:
    if refusal := not_waiting(target, "retry"):
        return Move(refusal=refusal)
    if target.hold is Hold.NONE or target.is_due:
        return Move(unchanged="it is already due: the next free relay takes it")
    return Move(
        statements=[DUE_AT], values={"at": None, "delay": AT_ONCE}, detail="PENDING, due now"
    )


def plan_reschedule(target: Target, at: datetime | None, delay: timedelta | None) -> Move:
    if refusal := not_waiting(target, "reschedule"):
        return Move(refusal=refusal)
    when = f"at {at.isoformat()}" if at else f"in {format_duration(delay or AT_ONCE)}"
    plan = Move(
        statements=[DUE_AT], values={"at": at, "delay": delay}, detail=f"PENDING, due {when}"
    )
    if target.ordered and target.ordering_key is not None:
        plan.warnings.append(
            f"later events of its key {target.ordering_key!r} wait for it until then"
        )
    return plan


def plan_death(target: Target, reason: str, hold_key: bool) -> Move:
    if refusal := in_flight(target):
        return Move(refusal=refusal)
    if target.state is State.PUBLISHED:
        return Move(refusal="it is PUBLISHED: it cannot be recalled")
    if target.state is State.DEAD:
        return Move(refusal="it is already DEAD")
    error = Error.of(ErrorClass.OPERATOR, "DECLARED_DEAD", reason)
    keyed = target.ordered and target.ordering_key is not None
    plan = Move(
        statements=[CLAIM, BURY, RELEASE],
        values={
            "hold": (Hold.DEAD if hold_key and keyed else Hold.NONE).value,
            "error": Jsonb({"class": error.kind.value, "code": error.code, "text": error.text}),
        },
        detail="DEAD",
    )
    if keyed:
        plan.warnings.append(
            f"its key {target.ordering_key!r} "
            + ("waits until it is replayed or skipped" if hold_key else "continues without it")
        )
    return plan


def plan_replay(target: Target, replay_id: str, keep_attempts: bool) -> Move:
    if refusal := in_flight(target):
        return Move(refusal=refusal)
    if target.state is State.PENDING:
        return Move(refusal="it is PENDING: it will be published anyway (retry makes it due now)")
    plan = Move(
        statements=[REPLAY],
        values={"replay_id": replay_id, "reset": not keep_attempts},
        detail=f"{target.state} to PENDING, due now, replay {replay_id}",
    )
    plan.warnings.append(
        f"it was published at {target.last_publication}: consumers get it again"
        if target.last_publication
        else "an attempt without an answer may have reached the broker: consumers may get it twice"
    )
    if target.published_later:
        plan.warnings.append(
            f"order: {target.published_later} later event(s) of its key {target.ordering_key!r} "
            "are already published, and this one comes after them"
        )
    limit = target.max_attempts
    if keep_attempts and target.attempts_in_budget:
        plan.warnings.append(
            f"{target.attempts_in_budget}{f' of {limit}' if limit else ''} attempts stay counted: "
            "it may be DEAD after the next failure"
        )
    if not target.active:
        plan.warnings.append(f"relay {target.relay!r} is not active: it is not published for now")
    return plan


def plan_skip(target: Target) -> Move:
    if target.state is not State.DEAD:
        return Move(refusal=f"it is {target.state}: only a DEAD event can be skipped")
    if target.hold is not Hold.DEAD:
        return Move(unchanged="it is DEAD and blocks nothing")
    return Move(
        statements=[SKIP, RELEASE],
        detail=f"stays DEAD; its key {target.ordering_key!r} continues",
        warnings=["later events of its key are published without it: consumers see a gap"],
    )


def in_flight(target: Target) -> str | None:
    if target.state is not State.CLAIMED:
        return None
    if target.lease_ended:
        return (
            f"it is CLAIMED by {target.claimed_by}, whose lease has expired: "
            "`outbox-relay reap` or a running relay takes it back"
        )
    return f"it is CLAIMED by {target.claimed_by}, in flight: wait, or let the lease expire"


def not_waiting(target: Target, verb: str) -> str | None:
    if refusal := in_flight(target):
        return refusal
    if target.state is not State.PENDING:
        return f"it is {target.state}, not PENDING: use `outbox-relay replay`"
    if target.hold is Hold.KEY:
        front = target.waits_for or "an earlier event of its key, which has just changed"
        return f"it waits behind {front}: {verb}, replay or skip that one"
    return None


def which_relay(found: Sequence[str], wanted: str | None) -> str:
    if found:
        return f"relays {', '.join(sorted(found))} have it: choose one with --relay"
    if wanted is not None:
        return f"relay {wanted!r} has no delivery of it"
    return "no relay has a delivery of it: none subscribes to it, or the one that did was retired"
