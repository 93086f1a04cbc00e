"""
Order within a key: which events may be sent together, and which wait after a failure.

The rule: an event is not sent while an earlier one of its key may still fail. `KeyOrder` implements
it, for the worker (between its calls), for publishers (within one call) and for the verdicts.

A batch goes out in waves. A wave contains several events of a key only if the publisher promises
that within one call none of them arrives unless all before it did (the same `route`); otherwise
one of each key.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence

from outbox_core.model.attempt import Acked, Outcome, Unsent, Verdict
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State

RouteOf = Callable[[Claim], Hashable | None]

BEHIND = Unsent("an earlier event of its key was not published")


class KeyOrder:
    """
    Sends nothing after a failure of the same key: remembers, for one batch, which keys have failed.

    An event without a key waits for nothing and blocks nothing. If the relay does not order
    (`enabled` is false) that is true of every event.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self.failed_keys: set[str] = set()
        """Read directly where a call per event would cost too much: it is usually empty."""

    def blocks(self, claim: Claim) -> bool:
        """Whether an earlier event of its key failed, so that this one must wait."""
        return claim.ordering_key in self.failed_keys

    def fail(self, claim: Claim) -> None:
        """It did not arrive, or it is unknown whether it did: later events of its key wait."""
        if self._enabled and claim.ordering_key is not None:
            self.failed_keys.add(claim.ordering_key)

    def saw(self, claims: Sequence[Claim], outcomes: Sequence[Outcome | None]) -> None:
        """Record the outcomes of these claims. None is unknown, and counts as a failure."""
        for claim, outcome in zip(claims, outcomes, strict=True):
            if not isinstance(outcome, Acked):
                self.fail(claim)

    def waves(self, batch: Sequence[Claim], route_of: RouteOf) -> Iterator[list[Claim]]:
        """
        The batch in waves, each without the events that are behind a failure by then: after each
        wave the caller reports its outcomes to `saw`. Events that are in no wave are BEHIND.
        """
        for wave in waves(batch, route_of) if self._enabled else [list(batch)]:
            if self.failed_keys:
                wave = [claim for claim in wave if not self.blocks(claim)]
            if wave:
                yield wave

    def settle(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The same outcomes, but only the first failure of each key: the others are BEHIND it."""
        settled = []
        for claim, outcome in zip(batch, outcomes, strict=True):
            if not isinstance(outcome, Acked):
                if self.blocks(claim):
                    outcome = BEHIND
                self.fail(claim)
            settled.append(outcome)
        return settled


def waves(batch: Sequence[Claim], route_of: RouteOf) -> list[list[Claim]]:
    """Split a batch, which is in seq order, into waves that are in seq order too."""
    result: list[list[Claim]] = [[]]
    heads: dict[str, Claim] = {}
    last: dict[str, tuple[int, Hashable | None]] = {}
    for claim in batch:
        key = claim.ordering_key
        if key is None or (head := heads.setdefault(key, claim)) is claim:
            result[0].append(claim)
            continue
        # Only now is a route of use: as a rule, most events of a batch are alone with their key.
        wave, route = last[key] if key in last else (0, route_of(head))
        here = route_of(claim)
        if here is None or here != route:
            wave += 1
        last[key] = (wave, here)
        if wave == len(result):
            result.append([])
        result[wave].append(claim)
    return result


def with_holds(verdicts: Sequence[tuple[Claim, Verdict]], block_on_dead: bool) -> list[Verdict]:
    """
    The same verdicts, with the holds that an ordered relay needs: a dead event blocks its key under
    `onDead: Block`, and an event behind a failure of its key waits for it.
    """
    order = KeyOrder()
    result = []
    for claim, verdict in verdicts:
        if claim.ordering_key is not None:
            if verdict.state is State.DEAD:
                if block_on_dead:
                    verdict = verdict._replace(hold=Hold.DEAD)
                    order.fail(claim)
            elif order.blocks(claim) and verdict.hold is Hold.TIME:
                verdict = verdict._replace(hold=Hold.KEY)
            elif verdict.delay > 0:
                order.fail(claim)
        result.append(verdict)
    return result
