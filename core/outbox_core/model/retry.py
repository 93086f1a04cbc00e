"""
The retry policy and the judgement: which outcome leads to which state, and when it is tried again.

Chance is an argument, and time is a delay that the database adds to its own clock: so this is a
function of values. The store sets no policy; the row may carry a limit (max_attempts).
"""

from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache

from outbox_core.model.attempt import (
    LONGEST_RETRY_AFTER_SECONDS,
    Error,
    ErrorClass,
    Outcome,
    Refused,
    Unsent,
    Verdict,
)
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State

SHORTEST_DELAY_SECONDS = 0.01
"""A retry is always in the future: a failure never turns into a tight loop."""

LONGEST_PARKED_DELAY_SECONDS = 60.0
"""Waiting for a destination costs an event no attempts, so this delay decides nothing about giving
up. It is shorter than a retry's, because all these events wait for the same moment."""


@dataclass(frozen=True, slots=True)
class Override:
    """Different limits for the event types that match."""

    event_type: str
    max_attempts: int | None = None
    base_delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The limits of one relay. Their defaults are in `contract.settings.RetryPolicy`."""

    max_attempts: int
    base_delay: timedelta
    max_delay: timedelta
    jitter: float
    max_age: timedelta | None
    max_crashes: int
    overrides: tuple[Override, ...]

    def override(self, event_type: str) -> Override | None:
        return _first_match(self.overrides, event_type)

    def limit(self, claim: Claim) -> int:
        """The event's own limit, otherwise its type's, otherwise the relay's."""
        if claim.max_attempts is not None:
            return claim.max_attempts
        override = self.override(claim.event_type)
        if override is not None and override.max_attempts is not None:
            return override.max_attempts
        return self.max_attempts

    def delay(self, event_type: str, nth: int, chance: float) -> float:
        """Seconds before the retry after the nth failure: base x 2^(n-1), capped, plus or minus
        the jitter. `chance` is in [0, 1); 0.5 gives no jitter."""
        override = self.override(event_type)
        base = self.base_delay
        if override is not None and override.base_delay is not None:
            base = override.base_delay
        cap = self.max_delay.total_seconds()
        exact = min(cap, base.total_seconds() * 2.0 ** min(nth - 1, 60))
        jittered = exact * (1.0 + self.jitter * (2.0 * chance - 1.0))
        return max(SHORTEST_DELAY_SECONDS, min(cap, jittered))

    def spread(self, after: float, chance: float) -> float:
        """At least this long, up to a limit; longer by chance, so that not all come at once."""
        return min(LONGEST_RETRY_AFTER_SECONDS, after) * (1.0 + self.jitter * chance)

    def is_too_old(self, claim: Claim) -> bool:
        return self.max_age is not None and claim.age > self.max_age


@lru_cache(maxsize=4096)
def _first_match(overrides: tuple[Override, ...], event_type: str) -> Override | None:
    return next((o for o in overrides if fnmatchcase(event_type, o.event_type)), None)


def judge(outcome: Outcome, claim: Claim, policy: Retry, chance: float) -> Verdict:
    """Decide what happens to a claim that was not acknowledged."""
    match outcome:
        case Refused(error) if error.kind is ErrorClass.EVENT:
            return _dead(claim, error)
        case Refused(error, after) if error.kind is ErrorClass.OUTAGE:
            # Never DEAD, for an outage of any length. Back off by all attempts, since none counts.
            delay = policy.delay(claim.event_type, claim.attempts, chance)
            return _again(claim, error, max(delay, policy.spread(after, chance)), refund=True)
        case Refused(error, after) if error.kind is ErrorClass.DESTINATION:
            delay = _while_parked(claim, policy, chance)
            return _again(claim, error, max(delay, policy.spread(after, chance)), refund=True)
        case Refused(error) if policy.is_too_old(claim):
            return _dead(claim, Error.of(ErrorClass.EXPIRED, error.code, f"maxAge: {error.text}"))
        case Refused(error) if claim.spent >= policy.limit(claim):
            return _dead(claim, error)
        case Refused(error, after):
            delay = policy.delay(claim.event_type, claim.spent, chance)
            return _again(claim, error, max(delay, policy.spread(after, chance)))
        case Unsent(after=after) if after > 0:
            # Later each time: otherwise a long line of them would be claimed over and over, only
            # to be given back.
            delay = _while_parked(claim, policy, chance)
            return give_back(claim, max(delay, policy.spread(after, chance)))
        case Unsent():
            return give_back(claim)
    raise AssertionError(f"an acknowledged event needs no verdict: {outcome!r}")


def give_back(claim: Claim, delay: float = 0.0) -> Verdict:
    """Claimed and not tried: due at once, or after a delay. It costs the event no attempt."""
    return Verdict(claim.seq, claim.token, State.PENDING, Hold.TIME, delay, refund=True)


def judge_crash(claim: Claim, policy: Retry, chance: float) -> Verdict:
    """
    The lease expired. Perhaps the relay was killed, perhaps the event killed it.

    If several events were in flight, none is blamed: all come back as suspects, first in small
    groups and then one by one, and it costs them no attempt. If it happens again while an event is
    alone in flight, that event pays for it.
    """
    alone = claim.crashes >= 2
    error = Error.of(
        ErrorClass.CRASH,
        "LEASE_EXPIRED",
        f"the relay that had claimed it stopped answering ({claim.crashes + 1} in a row)",
    )
    if alone and (claim.crashes >= 1 + policy.max_crashes or claim.spent >= policy.limit(claim)):
        return _dead(claim, error)._replace(crashed=True)
    delay = policy.delay(claim.event_type, claim.crashes, chance) if alone else 0.0
    return Verdict(
        claim.seq,
        claim.token,
        State.PENDING,
        Hold.SUSPECT,
        delay,
        refund=not alone,
        crashed=True,
        error=error,
    )


def _while_parked(claim: Claim, policy: Retry, chance: float) -> float:
    """The delay grows with all attempts, since none counts."""
    return min(LONGEST_PARKED_DELAY_SECONDS, policy.delay(claim.event_type, claim.attempts, chance))


def _dead(claim: Claim, error: Error) -> Verdict:
    return Verdict(claim.seq, claim.token, State.DEAD, error=error)


def _again(claim: Claim, error: Error, delay: float, refund: bool = False) -> Verdict:
    return Verdict(
        claim.seq, claim.token, State.PENDING, Hold.TIME, delay, refund=refund, error=error
    )
