"""
`make bench-peers`: ours compared with Debezium Server and faststream-outbox, on the same work.

All in one run and in turns, every second round in the opposite order: absolute figures change with
the machine and the hour, ratios within a round hardly do. Debezium is always ordered, and is
compared with both our modes.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from bench.lab import Lab, lab
from bench.peers_install import debezium_home, java_of_debezium, python_of_faststream
from bench.report import Report
from bench.scenarios.drain import burst, drain
from bench.scenarios.steady import steady
from bench.systems.base import System
from bench.systems.debezium import Debezium
from bench.systems.faststream import Faststream
from bench.systems.ours import Ours

EVENTS_PER_SECOND = 500.0
PEERS = ("debezium", "faststream")
Work = Literal["drain", "latency"]
WORKS: tuple[Work, ...] = ("drain", "latency")


@dataclass(frozen=True)
class Sizes:
    events: int = 200_000
    seconds: float = 25
    repeat: int = 3


QUICK = Sizes(events=20_000, seconds=6, repeat=1)


def ours() -> list[System]:
    return [Ours("None"), Ours("Key")]


def everyone(tuned_for: Work) -> list[System]:
    return [*ours(), Debezium(), Faststream(tuned_for)]


def in_turns(
    systems: Callable[[], list[System]], chosen: Sequence[str], rounds: int
) -> list[System]:
    """New systems in each round, every second round in the opposite order."""
    found: list[System] = []
    for number in range(rounds):
        some = [s for s in systems() if s.name.partition(",")[0] in chosen]
        found += reversed(some) if number % 2 else some
    return found


def drains(lab: Lab, sizes: Sizes, chosen: Sequence[str], report: Report) -> None:
    for system in in_turns(lambda: everyone("drain"), chosen, sizes.repeat):
        report.add("drain", system.name, drain(lab, system, sizes.events, 1000).row())
    for system in in_turns(lambda: [Ours("Key"), Debezium()], chosen, sizes.repeat):
        done = drain(lab, system, sizes.events, 10)
        report.add("drain, 10 hot keys", system.name, done.row())

    def ratio(name: str, column: str, scenario: str, bar: float, *, at_least: bool) -> None:
        mine, theirs = (report.median(scenario, n, column) for n in (name, "debezium"))
        what = f"{scenario}, {column}: {name} : debezium"
        report.judge_ratio(what, mine, theirs, bar, at_least=at_least)

    ratio("ours", "warm", "drain", 2.5, at_least=True)
    ratio("ours, ordered", "warm", "drain", 2.0, at_least=True)
    ratio("ours, ordered", "warm", "drain, 10 hot keys", 1.5, at_least=True)
    for name in ("ours", "ours, ordered"):
        for column in ("CPU", "CPU warm"):
            ratio(name, column, "drain", 0.35, at_least=False)


def bursts(lab: Lab, sizes: Sizes, chosen: Sequence[str], report: Report) -> None:
    for system in in_turns(lambda: everyone("drain"), chosen, sizes.repeat):
        report.add("burst", system.name, burst(lab, system, sizes.events, 1000))
    for name in ("ours", "ours, ordered"):
        mine, theirs = (report.median("burst", n, "events/s") for n in (name, "debezium"))
        bar = 2.5 if name == "ours" else 2.0
        what = f"burst, events/s: {name} : debezium"
        report.judge_ratio(what, mine, theirs, bar, at_least=True)


def latency(lab: Lab, sizes: Sizes, chosen: Sequence[str], report: Report) -> None:
    title = "latency at 500/s"
    for system in in_turns(lambda: everyone("latency"), chosen, sizes.repeat):
        report.add(
            title, system.name, steady(lab, system, EVENTS_PER_SECOND, sizes.seconds, 1000).row()
        )
    bars = {"ours": {"p50 ms": 0.4, "p99": 0.5}, "ours, ordered": {"p50 ms": 1.0, "p99": 1.0}}
    for name, columns in bars.items():
        for column, bar in columns.items():
            theirs = [report.median(title, peer, column) for peer in PEERS]
            best = min((value for value in theirs if value is not None), default=None)
            what = f"{title}, {column}: {name} : best peer"
            report.judge_ratio(what, report.median(title, name, column), best, bar)
        mine, debezium = (report.median(title, n, "CPU") for n in (name, "debezium"))
        report.judge_ratio(f"{title}, CPU: {name} : debezium", mine, debezium, 1.0)


SCENARIOS: dict[str, Callable[[Lab, Sizes, Sequence[str], Report], None]] = {
    "drain": drains,
    "burst": bursts,
    "latency": latency,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it work at all?")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="may be repeated")
    parser.add_argument("--system", action="append", choices=("ours", *PEERS))
    parser.add_argument("--events", type=int, help="events per drain")
    parser.add_argument("--repeat", type=int, help="runs of each case")
    arguments = parser.parse_args()
    chosen = asdict(QUICK if arguments.quick else Sizes())
    chosen |= {k: v for k in ("events", "repeat") if (v := getattr(arguments, k))}
    sizes = Sizes(**chosen)
    systems = arguments.system or ("ours", *PEERS)
    used = {
        f"{system.name}, {work}": dict(system.describe())
        for work in WORKS
        for system in everyone(work)
    }
    report = Report("peers", {**asdict(sizes), "systems": used})
    if "debezium" in systems:
        report.log(f"Debezium: {debezium_home()}, {java_of_debezium()}")
    if "faststream" in systems:
        report.log(f"faststream-outbox: {python_of_faststream()}")
    report.log("starting PostgreSQL and Kafka")
    with lab() as servers:
        for name in arguments.only or SCENARIOS:
            SCENARIOS[name](servers, sizes, systems, report)
    report.print()
    print(f"\nwritten to {report.write()}")


if __name__ == "__main__":
    main()
