"""
Destinations: a publisher's topics or endpoints, of which one may be sick while the others are well.

A publisher gives every batch to `publish`, which leaves out what is for parked destinations, sends
the rest, and learns from the outcomes. A timeout alone proves little. If others answered in the
same call, it is the destination's fault. If none did, it may be the broker's: then the worker
probes the broker, and calls `blame` if it answers.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from outbox_core.model.attempt import (
    Acked,
    Error,
    ErrorClass,
    Outcome,
    Refused,
    Unsent,
    all_acked,
)
from outbox_core.model.event import Claim
from outbox_relay.publishers.parking import Parked, Parking, Trial, TurnedAway

log = logging.getLogger("outbox.relay")

TRIAL_EVENTS = 20
"""How many are tried first when a pause is over."""

BRIEF_TRIAL_SECONDS = 0.5
"""A healthy destination nearby answers by then. A later answer still counts, but the event is sent
again."""

WHY_PARKED = "its destination takes nothing now"

Send = Callable[[Sequence[Claim], float | None], Sequence[Outcome]]
"""A batch, and how many seconds it may take (None: as long as usual); one outcome per event."""


def is_transient(error: Error) -> bool:
    return error.kind is ErrorClass.TRANSIENT


class Destinations:
    def __init__(
        self,
        name_of: Callable[[Claim], str | None],
        send: Send,
        timeout: float,
        clock: Callable[[], float],
        brief_trials: bool = False,
        is_answer: Callable[[Error], bool] = is_transient,
    ) -> None:
        """`name_of` returns None for an event that has no destination: it goes to `send`, which
        refuses it. `timeout` is what a call may take, in seconds. With `brief_trials`, a call waits
        for a trial only BRIEF_TRIAL_SECONDS, and `send` reports to `heard` what comes later.
        `is_answer`: whether a refusal came from its destination itself."""
        self._name_of = name_of
        self._send = send
        self._timeout = timeout
        self._clock = clock
        self._brief_trials = brief_trials
        self._is_answer = is_answer
        self._parking = Parking(clock, brief_patience=BRIEF_TRIAL_SECONDS if brief_trials else None)

    def publish(self, batch: Sequence[Claim]) -> Sequence[Outcome]:
        start = self._clock()
        if not self._parking:
            outcomes = self._send(batch, None)
            return self._learn(batch, outcomes, (), self._clock() - start)
        until = start + self._timeout
        found: list[Outcome | None] = [None] * len(batch)
        healthy: list[int] = []
        trial: list[int] = []
        admitted: dict[str, Trial | TurnedAway | None] = {}
        room: dict[str, int] = {}
        turned_away: dict[str, list[int]] = {}
        for index, claim in enumerate(batch):
            name = self._name_of(claim)
            if name is None:
                healthy.append(index)
                continue
            if name not in admitted:
                admitted[name] = self._parking.admit(name)
                room[name] = TRIAL_EVENTS
            match admitted[name]:
                case None:
                    healthy.append(index)
                # The first events for it: so every key begins with its first one, without a gap.
                case Trial() if room[name] > 0:
                    room[name] -= 1
                    trial.append(index)
                case _:
                    turned_away.setdefault(name, []).append(index)
        for name, indexes in turned_away.items():
            later = Unsent(WHY_PARKED, self._parking.turn_away(name, len(indexes)))
            for index in indexes:
                found[index] = later
        tried = {name: a.patience for name, a in admitted.items() if isinstance(a, Trial)}
        try:
            # Separately and after the others, so that these need not wait for the trials.
            self._send_part(batch, healthy, found, None)
            began = self._clock()
            left = until - began
            patience = min(left, max(tried.values(), default=0.0))
            if left > 0:
                self._send_part(batch, trial, found, patience)
            else:
                for index in trial:
                    found[index] = Unsent(WHY_PARKED, 1.0)
            took, held = began - start, self._clock() - began
            return self._learn(batch, found, tried, took, held)  # type: ignore[arg-type]
        finally:
            for name in tried:
                self._parking.undecided(name)  # if there is no result, as after an exception

    def blame(self, batch: Sequence[Claim], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        failed: dict[str, Refused] = {}
        for claim, outcome in zip(batch, outcomes, strict=True):
            name, outage = self._name_of(claim), _outage(outcome)
            if name is not None and outage is not None:
                _remember(failed, name, outage)
        return self._park(failed, batch, outcomes)

    def heard(self, claim: Claim, outcome: Outcome) -> None:
        """The outcome of a trial that came after its call. The event itself already has one."""
        name = self._name_of(claim)
        if name is None:
            return
        match outcome:
            case Acked():
                self._welcome_back(name)
            case Refused(error, after) if _is_away(error):
                if after:
                    self._parking.sick(name, f"{error.code}: {error.text}", after)
            case Refused(error) if self._is_answer(error):
                self._welcome_back(name)

    def parked(self) -> Sequence[Parked]:
        return self._parking.parked()

    def _send_part(
        self,
        batch: Sequence[Claim],
        indexes: Sequence[int],
        outcomes: list[Outcome | None],
        patience: float | None,
    ) -> None:
        if indexes:
            found = self._send([batch[i] for i in indexes], patience)
            for index, outcome in zip(indexes, found, strict=True):
                outcomes[index] = outcome

    def _learn(
        self,
        batch: Sequence[Claim],
        outcomes: Sequence[Outcome],
        tried: Collection[str],
        took: float,
        held: float = 0.0,
    ) -> Sequence[Outcome]:
        """The call took `took` seconds without its trials, which made it longer by `held`."""
        if not self._parking and all_acked(outcomes):
            return outcomes
        answered: set[str] = set()
        failed: dict[str, Refused] = {}
        any_acked = False
        for claim, outcome in zip(batch, outcomes, strict=True):
            name = self._name_of(claim)
            if name is None:
                continue
            match outcome:
                case Acked():
                    any_acked = True
                    answered.add(name)
                case Refused(error) if _is_away(error):
                    _remember(failed, name, outcome)
                case Refused(error) if self._is_answer(error):
                    answered.add(name)  # with a refusal, but it answered
        if self._parking:
            for name in answered:
                self._welcome_back(name)
        sick = {
            name: refused
            for name, refused in failed.items()
            if name not in answered and (any_acked or refused.error.kind is ErrorClass.DESTINATION)
        }
        if not self._brief_trials:
            return self._park(sick, batch, outcomes)
        # Side by side they held the call no longer than one of them would have.
        share = held / max(1, len(sick.keys() & tried))
        costs = {name: share if name in tried else took for name in sick}
        return self._park(sick, batch, outcomes, costs)

    def _park(
        self,
        sick: Mapping[str, Refused],
        batch: Sequence[Claim],
        outcomes: Sequence[Outcome],
        costs: Mapping[str, float] = MappingProxyType({}),
    ) -> Sequence[Outcome]:
        """These are at fault, not the broker; `costs` are the seconds that calls waited for them,
        where longer pauses make up for that."""
        if not sick:
            return outcomes
        self._parking.charge(costs)
        for name, (error, after) in sick.items():
            if self._parking.sick(name, f"{error.code}: {error.text}", after, costs.get(name, 0.0)):
                log.warning(
                    "%s takes nothing now: its events wait, and it costs them no attempts; "
                    "others go on: %s",
                    name,
                    error.text,
                    extra={
                        "event": "parked",
                        "destination": name,
                        "error_code": error.code,
                    },
                )
        return [
            outage._replace(error=outage.error._replace(kind=ErrorClass.DESTINATION))
            if (outage := _outage(outcome)) and self._name_of(claim) in sick
            else outcome
            for claim, outcome in zip(batch, outcomes, strict=True)
        ]

    def _welcome_back(self, name: str) -> None:
        if known := self._parking.well(name):
            log.info(
                "%s answers again, after %.0f s",
                name,
                known.seconds,
                extra={"event": "unparked", "destination": name},
            )


def _is_away(error: Error) -> bool:
    return error.kind in (ErrorClass.OUTAGE, ErrorClass.DESTINATION)


def _outage(outcome: Outcome) -> Refused | None:
    if isinstance(outcome, Refused) and outcome.error.kind is ErrorClass.OUTAGE:
        return outcome
    return None


def _remember(failed: dict[str, Refused], name: str, refused: Refused) -> None:
    """The first refusal of a destination, unless a later one asks for a longer wait."""
    if name not in failed or refused.after > failed[name].after:
        failed[name] = refused
