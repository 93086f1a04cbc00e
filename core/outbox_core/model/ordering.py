"""
Order within a key: what may be sent together, and who waits when something failed.

The rule: an event is not sent while an earlier one of its key may still fail. So a batch goes out
in waves. A wave holds several events of a key only where the publisher promises that within one
call none of them arrives unless all before it did (the same `route`); else one of each key.
"""

from collections.abc import Callable, Hashable, Sequence

from outbox_core.model.attempt import Acked, Outcome, Unsent, Verdict
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State

Route = Callable[[Claim], Hashable | None]


def waves(batch: Sequence[Claim], route: Route) -> list[list[Claim]]:
    """Cut a batch, which is in seq order, into waves that are in seq order too."""
    result: list[list[Claim]] = [[]]
    last: dict[str, tuple[int, Hashable | None]] = {}
    for claim in batch:
        key = claim.ordering_key
        if key is None:
            result[0].append(claim)
            continue
        here = route(claim)
        seen = last.get(key)
        if seen is None:
            wave = 0
        elif here is not None and here == seen[1]:
            wave = seen[0]
        else:
            wave = seen[0] + 1
        last[key] = (wave, here)
        if wave == len(result):
            result.append([])
        result[wave].append(claim)
    return result


def broken_keys(wave: Sequence[Claim], outcomes: Sequence[Outcome]) -> set[str]:
    """Keys of which something in this wave did not arrive."""
    return {
        claim.ordering_key
        for claim, outcome in zip(wave, outcomes, strict=True)
        if claim.ordering_key is not None and not isinstance(outcome, Acked)
    }


def without_broken(wave: Sequence[Claim], broken: set[str]) -> tuple[list[Claim], list[Claim]]:
    """(to send, to leave): what stands behind a failure of its key is left."""
    if not broken:
        return list(wave), []
    send = [c for c in wave if c.ordering_key not in broken]
    leave = [c for c in wave if c.ordering_key in broken]
    return send, leave


def in_order(verdicts: Sequence[tuple[Claim, Verdict]], block_on_dead: bool) -> list[Verdict]:
    """
    The same verdicts, with the holds that an ordered relay needs: an event that is dead under
    `onDead: Block` keeps its key, and what stands behind a failure of its key waits for it.
    """
    waiting: set[str] = set()
    result = []
    for claim, verdict in verdicts:
        key = claim.ordering_key
        if key is not None:
            if verdict.state is State.DEAD:
                if block_on_dead:
                    verdict = verdict._replace(hold=Hold.DEAD)
                    waiting.add(key)
            elif key in waiting and verdict.hold is Hold.TIME:
                verdict = verdict._replace(hold=Hold.KEY)
            elif verdict.delay > 0:
                waiting.add(key)
        result.append(verdict)
    return result


BEHIND = Unsent("an earlier event of its key was not published")
