"""`make bench`: ours alone. `python -m bench --help` shows how to run a part of it."""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

from bench.lab import Lab, lab
from bench.report import Report
from bench.scenarios.drain import drain
from bench.scenarios.growth import finished, idle_reader, idle_writer
from bench.scenarios.idle import idle
from bench.scenarios.producer import producer
from bench.scenarios.steady import steady
from bench.systems.ours import Ours

EVENTS_PER_SECOND = 500.0
ORDERINGS: tuple[Literal["None", "Key"], ...] = ("None", "Key")
NAMES = {"None": "unordered", "Key": "ordered"}


@dataclass(frozen=True)
class Sizes:
    events: int = 200_000
    seconds: float = 25
    finished: int = 2_000_000
    idle: float = 60
    rounds: int = 8
    repeat: int = 3


QUICK = Sizes(events=20_000, seconds=6, finished=100_000, idle=15, rounds=3, repeat=1)


def drains(lab: Lab, sizes: Sizes, report: Report) -> None:
    works: list[tuple[str, Literal["None", "Key"], int]] = [
        ("unordered", "None", 1000),
        ("ordered, 1000 keys", "Key", 1000),
        ("ordered, 10 hot keys", "Key", 10),
    ]
    # Round by round, so that a busy minute of the machine does not affect one case only.
    for _ in range(sizes.repeat):
        for name, ordering, keys in works:
            for processes in (1, 2):
                done = drain(lab, Ours(ordering, processes), sizes.events, keys)
                report.add("drain", f"{name}, {processes} process(es)", done.row())
    for name, _, _ in works:
        one, two = (report.median("drain", f"{name}, {n} process(es)", "warm") for n in (1, 2))
        report.judge_ratio(f"drain, {name}: two processes : one", two, one, 1.0, at_least=True)
        case = f"{name}, 1 process(es)"
        wal = report.median("drain", case, "WAL")
        report.judge(f"drain, {name}: WAL bytes per event, claim to finalise", wal, 250)
        report.judge(f"drain, {name}: memory, MB", report.median("drain", case, "MB"), 100)
        disorder = report.median("drain", case, "disorder")
        report.judge(f"drain, {name}: events out of order", disorder, 0)


def latency(lab: Lab, sizes: Sizes, report: Report) -> None:
    for _ in range(sizes.repeat):
        for ordering in ORDERINGS:
            done = steady(lab, Ours(ordering), EVENTS_PER_SECOND, sizes.seconds, 1000)
            report.add("latency at 500/s", NAMES[ordering], done.row())


def growth(lab: Lab, sizes: Sizes, report: Report) -> None:
    for ordering in ORDERINGS:
        report.log(f"growth: making {sizes.finished} finished events, {NAMES[ordering]}")
        with finished(lab, Ours(ordering), sizes.finished) as template:
            cases = {
                "nothing beside it": (None, None),
                "finished rows": (template, None),
                "idle reader": (None, idle_reader),
                "idle writer": (None, idle_writer),
            }
            for _ in range(sizes.repeat):
                for case, (copied, before) in cases.items():
                    done = drain(
                        lab, Ours(ordering), sizes.events, 1000, template=copied, before=before
                    )
                    report.add("growth", f"{NAMES[ordering]}, {case}", done.row())
        alone, *others = (
            report.median("growth", f"{NAMES[ordering]}, {case}", "warm") for case in cases
        )
        for case, rate in zip(list(cases)[1:], others, strict=True):
            what = f"growth, {NAMES[ordering]}: {case} : nothing beside it"
            report.judge_ratio(what, rate, alone, 0.9, at_least=True)


def idling(lab: Lab, sizes: Sizes, report: Report) -> None:
    for ordering in ORDERINGS:
        case = NAMES[ordering]
        done = idle(lab, Ours(ordering), sizes.idle)
        report.add("idle", case, done.row())
        for query, calls in done.statements.items():
            report.log(f"idle: {case}: {calls:5.1f}/min {query[:90]}")
        share = report.median("idle", case, "relay % of a core")
        statements = report.median("idle", case, "statements/min")
        report.judge(f"idle, {case}: % of a core", share, 1)
        report.judge(f"idle, {case}: statements a minute", statements, 30)


def producers(lab: Lab, sizes: Sizes, report: Report) -> None:
    for clients in (1, 4):
        case = f"{clients} client(s)"
        report.add("producer", case, producer(lab, clients, sizes.rounds, 2).row())
        ratio = report.median("producer", case, "emit : bare")
        bar = 1.45 if clients == 1 else 1.6
        report.judge(f"producer, {case}: emit with key and one relay : bare insert", ratio, bar)


SCENARIOS: dict[str, Callable[[Lab, Sizes, Report], None]] = {
    "drain": drains,
    "latency": latency,
    "growth": growth,
    "idle": idling,
    "producer": producers,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it work at all?")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="may be repeated")
    parser.add_argument("--events", type=int, help="events per drain")
    parser.add_argument("--repeat", type=int, help="runs of each case")
    parser.add_argument("--finished", type=int, help="finished events beside a drain of growth")
    arguments = parser.parse_args()
    chosen = asdict(QUICK if arguments.quick else Sizes())
    chosen |= {k: v for k in ("events", "repeat", "finished") if (v := getattr(arguments, k))}
    sizes = Sizes(**chosen)
    report = Report("bench", asdict(sizes))
    report.log("starting PostgreSQL and Kafka")
    with lab() as servers:
        for name in arguments.only or SCENARIOS:
            SCENARIOS[name](servers, sizes, report)
    report.print()
    print(f"\nwritten to {report.write()}")


if __name__ == "__main__":
    main()
