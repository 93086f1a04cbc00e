"""
The contest: what `bench.peers` measures, as steps; who takes part, in which turns.

First the sweeps that tune the peers, then the work: ours and the peers alternate, and every second
round has the opposite order. Nothing is measured here, nor judged.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bench import tuning
from bench.bars import HOT, LATENCY, RATES, at_rate
from bench.lab import Lab
from bench.plan import Measured, Step
from bench.report import Report
from bench.scenarios.drain import burst, drain
from bench.scenarios.steady import WARM_UP_SECONDS, rates, steady
from bench.systems.base import System
from bench.systems.ours import Ours
from bench.tuning import CANDIDATES, PEERS, SWEEP_OF, Candidate, Choice, Peer, Sweep, Work

KEYS = 1000
HOT_KEYS = 10
EVENTS_PER_SECOND = 500.0
SCENARIOS = ("drain", "burst", "latency", "rates")
SYSTEMS = ("ours", *PEERS)
SWEEP = "sweep"
START_SECONDS = 20.0
"""A guess: database, topic, start and end of a system."""


@dataclass(frozen=True)
class Sizes:
    events: int = 200_000
    seconds: float = 25
    repeat: int = 3
    rates: tuple[float, ...] = (10, 50, 100, 500, 2000, 10_000)
    rate_seconds: float = 10
    sweep_events: int = 100_000
    sweep_seconds: float = 10


QUICK = Sizes(
    events=20_000,
    seconds=6,
    repeat=1,
    rates=(50, 500, 2000),
    rate_seconds=4,
    sweep_events=10_000,
    sweep_seconds=4,
)

Make = Callable[[], System]


class Tuned:
    """The peers with the settings that are best, as far as the report knows."""

    def __init__(self, report: Report, remembered: dict[Peer, dict[Work, str]]) -> None:
        self._report = report
        self._remembered = remembered
        self._announced: set[str] = set()

    def choice(self, peer: Peer, work: Work) -> Choice:
        scenario = sweep_title(SWEEP_OF[work])
        tried = {
            name: run
            for run in self._report.runs
            if run["scenario"] == scenario
            for owner, _, name in [run["case"].partition(": ")]
            if owner == peer
        }
        return tuning.best(peer, work, tried, self._remembered.get(peer, {}).get(work))

    def system(self, peer: Peer, work: Work) -> System:
        choice = self.choice(peer, work)
        text = f"{peer} runs with: {choice.candidate.name} ({work}; {choice.why})"
        if text not in self._announced:
            self._announced.add(text)
            self._report.log(text)
        return tuning.system(peer, choice.candidate)

    def chosen(self, systems: Sequence[str]) -> dict[Peer, dict[Work, Choice]]:
        peers = [peer for peer in PEERS if peer in systems]
        return {peer: {work: self.choice(peer, work) for work in SWEEP_OF} for peer in peers}


def sweep_title(sweep: Sweep) -> str:
    return f"{SWEEP}, drain" if sweep == "drain" else f"{SWEEP}, 500/s"


def contenders(work: Work, tuned: Tuned, systems: Sequence[str]) -> dict[str, Make]:
    """By their names in the tables; ours and the peers alternate."""
    everyone: dict[str, Make] = {
        "ours": lambda: Ours("None"),
        "debezium": lambda: tuned.system("debezium", work),
        "ours, ordered": lambda: Ours("Key"),
        "faststream": lambda: tuned.system("faststream", work),
    }
    return {name: make for name, make in everyone.items() if name.partition(",")[0] in systems}


def two_processes(systems: Sequence[str]) -> dict[str, Make]:
    if "ours" not in systems:
        return {}
    return {
        "ours, 2 processes": lambda: Ours("None", 2),
        "ours, ordered, 2 processes": lambda: Ours("Key", 2),
    }


def in_turns(
    scenario: str,
    some: dict[str, Make],
    repeat: int,
    guess_seconds: float,
    measure: Callable[[Lab, str, System], Iterable[Measured]],
) -> Iterator[Step]:
    """Every second round in the opposite order."""

    def step(name: str, make: Make, number: int) -> Step:
        def run(lab: Lab) -> Iterable[Measured]:
            return measure(lab, name, make())

        return Step(f"{scenario}: {name}", number, guess_seconds, run)

    for number in range(1, repeat + 1):
        names = list(some) if number % 2 else list(reversed(some))
        yield from (step(name, some[name], number) for name in names)


def drains(scenario: str, keys: int, some: dict[str, Make], sizes: Sizes) -> Iterator[Step]:
    def measure(lab: Lab, name: str, system: System) -> Iterator[Measured]:
        yield Measured(scenario, name, drain(lab, system, sizes.events, keys).row())

    guess = START_SECONDS + sizes.events / 12_000
    return in_turns(scenario, some, sizes.repeat, guess, measure)


def bursts(some: dict[str, Make], sizes: Sizes) -> Iterator[Step]:
    def measure(lab: Lab, name: str, system: System) -> Iterator[Measured]:
        yield Measured("burst", name, burst(lab, system, sizes.events, KEYS))

    guess = START_SECONDS + sizes.events / 12_000
    return in_turns("burst", some, sizes.repeat, guess, measure)


def latencies(some: dict[str, Make], sizes: Sizes) -> Iterator[Step]:
    def measure(lab: Lab, name: str, system: System) -> Iterator[Measured]:
        done = steady(lab, system, EVENTS_PER_SECOND, sizes.seconds, KEYS)
        yield Measured(LATENCY, name, done.row(), done.details())

    guess = START_SECONDS + WARM_UP_SECONDS + sizes.seconds
    return in_turns(LATENCY, some, sizes.repeat, guess, measure)


def over_rates(some: dict[str, Make], sizes: Sizes) -> Iterator[Step]:
    def measure(lab: Lab, name: str, system: System) -> Iterator[Measured]:
        phases = rates(lab, system, sizes.rates, sizes.rate_seconds, KEYS)
        # Not strict: it ends at the rate that the system cannot keep up with.
        for rate, done in zip(sizes.rates, phases, strict=False):
            row = {**done.row(), "kept up": int(done.kept_up)}
            yield Measured(RATES, at_rate(rate, name), row, {"rate": rate})

    guess = START_SECONDS + len(sizes.rates) * (5 + WARM_UP_SECONDS + sizes.rate_seconds)
    return in_turns(RATES, some, sizes.repeat, guess, measure)


def sweeps(systems: Sequence[str], wanted: Sequence[Sweep], sizes: Sizes) -> Iterator[Step]:
    def step(peer: Peer, sweep: Sweep, number: int, candidate: Candidate) -> Step:
        def run(lab: Lab) -> Iterator[Measured]:
            system, case = tuning.system(peer, candidate), f"{peer}: {candidate.name}"
            if sweep == "drain":
                row = drain(lab, system, sizes.sweep_events, KEYS).row()
            else:
                row = steady(lab, system, EVENTS_PER_SECOND, sizes.sweep_seconds, KEYS).row()
            yield Measured(sweep_title(sweep), case, row)

        work = sizes.sweep_events / 12_000 if sweep == "drain" else 8 + sizes.sweep_seconds
        return Step(f"{sweep_title(sweep)}: {peer}", number, START_SECONDS + work, run)

    for peer in PEERS:
        for sweep in wanted:
            for number, candidate in enumerate(CANDIDATES[peer][sweep], 1):
                if peer in systems:
                    yield step(peer, sweep, number, candidate)


def warm_ups(systems: Sequence[str], sizes: Sizes) -> Iterator[Step]:
    """Any first drain is slower: memory is touched for the first time, code is not compiled."""
    some: dict[str, Make] = {}
    if "ours" in systems:
        some |= {"ours": lambda: Ours("None"), "ours, ordered": lambda: Ours("Key")}
    for peer in PEERS:
        if peer in systems:
            some[peer] = partial(tuning.system, peer, CANDIDATES[peer]["drain"][0])

    def measure(lab: Lab, name: str, system: System) -> Iterator[Measured]:
        drain(lab, system, sizes.events, KEYS)
        yield from ()

    guess = START_SECONDS + sizes.events / 12_000
    return in_turns("warm-up, thrown away", some, 1, guess, measure)


def plan(
    sizes: Sizes, only: Sequence[str], systems: Sequence[str], sweep: bool, tuned: Tuned
) -> list[Step]:
    draining = contenders("drain", tuned, systems)
    two = two_processes(systems)
    ordered = ("ours, ordered", "debezium", "ours, ordered, 2 processes")
    hot = {name: make for name, make in {**draining, **two}.items() if name in ordered}
    steps: list[Step] = []
    if sweep:
        wanted: list[Sweep] = ["drain"] if {"drain", "burst"} & {*only} else []
        wanted += ["steady"] if {"latency", "rates"} & {*only} else []
        steps += sweeps(systems, wanted, sizes)
    if "drain" in only:
        steps += drains("drain", KEYS, {**draining, **two}, sizes)
        steps += drains(HOT, HOT_KEYS, hot, sizes)
    if "burst" in only:
        steps += bursts(draining, sizes)
    if "latency" in only:
        steps += latencies(contenders("latency", tuned, systems), sizes)
    if "rates" in only:
        steps += over_rates(contenders("cpu", tuned, systems), sizes)
    return steps
