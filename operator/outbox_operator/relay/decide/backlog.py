"""
The backlog for people: what waits, how old it is, and whether it is too much.

Figures are rounded to the digits that matter, so that the others cause no status update.
"""

from collections.abc import Sequence
from datetime import timedelta

from outbox_core.contract.report import Backlog, Report, Throughput, TopError
from outbox_core.contract.values import format_duration
from outbox_operator.relay.decide.autoscaling import Load
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.shared.checks import Finding
from outbox_operator.shared.figures import rounded
from outbox_operator.shared.reasons import Reason

DEFAULT_LAG_SECONDS = 60.0
"""Above this age of its oldest event a backlog is unhealthy, unless the spec has its own target."""
MOST_ERRORS = 5
DEFAULT_WINDOW_SECONDS = 60.0
"""The period that rates are averaged over, if a process does not report it."""


def backlog_of(reports: Sequence[Report]) -> Backlog | None:
    found = next((r.backlog for r in reports if r.backlog is not None), None)
    if found is None:
        return None
    oldest = found.oldest_pending_seconds
    return found.model_copy(
        update={"oldest_pending_seconds": rounded(oldest) if oldest >= 1 else 0.0}
    )


def throughput_of(reports: Sequence[Report]) -> Throughput | None:
    if not reports:
        return None
    return Throughput(
        published=rounded(sum(r.rates.published for r in reports)),
        failed=rounded(sum(r.rates.failed for r in reports)),
        dead=rounded(sum(r.rates.dead for r in reports)),
    )


def errors_of(reports: Sequence[Report]) -> tuple[TopError, ...]:
    """Why events are dead, as the database groups them: the same in each report."""
    return tuple(reports[0].top_errors[:MOST_ERRORS]) if reports else ()


def load_of(reports: Sequence[Report]) -> Load | None:
    """None if no pod reports."""
    if not reports:
        return None
    backlog = next((r.backlog for r in reports if r.backlog is not None), None)
    busy = [r.busy for r in reports if r.busy is not None]
    store = sum(b.store for b in busy)
    work = store + sum(b.publish for b in busy)
    ready = sum(r.ready for r in reports)
    return Load(
        lag=backlog.oldest_pending_seconds if backlog else 0.0,
        pending=backlog.pending if backlog else 0,
        rate=sum(r.rates.published for r in reports),
        # A share of their work, not of their time: the average over a minute would hide a burst
        # that has just begun, and waits only for the database.
        store_share=store / work if work else None,
        healthy=backlog is not None and 2 * ready >= len(reports),
        pods=len(reports),
        window=timedelta(seconds=max(r.rates.seconds or DEFAULT_WINDOW_SECONDS for r in reports)),
    )


def lag_of(backlog: Backlog | None) -> str | None:
    """`0s`, `12s`, `3m`, `2h`, `4d`."""
    if backlog is None:
        return None
    seconds = int(backlog.oldest_pending_seconds)
    for unit in (86400, 3600, 60):
        if seconds >= 2 * unit:
            return format_duration(timedelta(seconds=seconds // unit * unit))
    return f"{seconds}s"


def unhealthy(
    relay: OutboxRelay, backlog: Backlog, errors: Sequence[TopError], before: RelayStatus
) -> Finding | None:
    spec = relay.spec
    limit = float(spec.autoscaling.target_lag_seconds) if spec.autoscaling else DEFAULT_LAG_SECONDS
    was_high = any(
        c.type == "BacklogHealthy" and c.reason == Reason.LAG_TOO_HIGH for c in before.conditions
    )
    if backlog.oldest_pending_seconds > (limit / 2 if was_high else limit):  # to avoid flapping
        why = "; it is paused" if spec.paused else ""
        return Finding(
            Reason.LAG_TOO_HIGH,
            f"the oldest of {about(backlog, backlog.pending)} waiting events is "
            f"{lag_of(backlog)} old{why}" + _and_dead(relay, backlog, errors),
        )
    if backlog.dead:
        return Finding(Reason.DEAD_LETTERS, _dead(relay, backlog, errors))
    return None


def dead_events(backlog: Backlog, errors: Sequence[TopError]) -> str:
    """How many there are, and why."""
    most = f", most of them because: {errors[0].text}" if errors else ""
    return f"dead events: {about(backlog, backlog.dead)}{most}"


def about(backlog: Backlog, count: int) -> str:
    return f"about {count}" if backlog.approximate else str(count)


def _and_dead(relay: OutboxRelay, backlog: Backlog, errors: Sequence[TopError]) -> str:
    return f"; {_dead(relay, backlog, errors)}" if backlog.dead else ""


def _dead(relay: OutboxRelay, backlog: Backlog, errors: Sequence[TopError]) -> str:
    return (
        f"{dead_events(backlog, errors)}. List them with `outbox-relay dead`; when the cause is "
        "fixed, replay them with an OutboxReplay"
    )
