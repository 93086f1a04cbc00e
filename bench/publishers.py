"""
`make bench-publishers`: ours and Debezium Server to every kind of destination, with ratios.

Each kind on its real server, which runs alone beside PostgreSQL and the relay: how many events per
second, what they cost, and how long one takes at a steady rate. Debezium Server does the same work
on the same server, where it has a sink of the kind.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.destinations.sqs import SqsQueues
from bench.lab import Lab, lab
from bench.peers_install import DEBEZIUM, debezium_home, java_of_debezium
from bench.report import Report, markdown
from bench.scenarios.drain import drain
from bench.scenarios.steady import steady
from bench.systems.base import System
from bench.systems.debezium import Debezium
from bench.systems.ours import Ours

SYSTEMS: dict[str, Callable[[], System]] = {"ours": Ours, "debezium": Debezium}
KEYS = 1000
RATIO = 2.0
"""Ours to Debezium Server's, in every kind."""
NEAR = 0.9
LEAST_EVENTS = 500
PACKAGES = ("exim4-daemon-light", "nginx", "rabbitmq-server", "redis-server")


@dataclass(frozen=True)
class Case:
    destination: str
    """Its name in `bench.destinations.KINDS`."""
    events: int
    """As many as take ours some ten seconds."""
    peer_events: int = 0
    """Of Debezium Server, likewise; 0 if it cannot do this."""
    bar: float | None = None
    """Events per second that ours shall reach."""
    events_per_second: float = 500.0
    """While latency is measured; 0 if it is not."""


CASES: dict[str, list[Case]] = {
    "kafka": [Case("kafka", 200_000, 100_000)],
    "http": [
        Case("http", 40_000, 15_000, bar=3_000),
        Case("http-50", 30_000, events_per_second=0),
        Case("http-50-refused", 30_000, events_per_second=0),
        Case("http-50-silent", 30_000, events_per_second=0),
    ],
    "nats": [Case("nats", 150_000, 12_000, bar=15_000)],
    "rabbitmq": [
        Case("rabbitmq-quorum", 80_000, 80_000, bar=8_000),
        Case("rabbitmq-classic", 80_000, 80_000, bar=8_000),
    ],
    "redis": [Case("redis", 200_000, 100_000, bar=25_000)],
    "sqs": [Case("sqs", 30_000, 8_000)],
    "smtp": [Case("smtp", 1_500, events_per_second=20)],
}


@dataclass(frozen=True)
class Sizes:
    share: float = 1.0
    """Of each case's events."""
    events: int | None = None
    """Instead of each case's events, which are still the most for Debezium Server."""
    seconds: float = 15
    limit_seconds: float = 10
    repeat: int = 1

    def events_of(self, case: Case, system: str) -> int:
        most = case.events if system == "ours" else case.peer_events
        if self.events:
            return self.events if system == "ours" else min(self.events, most)
        return max(int(most * self.share), min(most, LEAST_EVENTS))


QUICK = Sizes(share=0.05, seconds=4, limit_seconds=3)


def in_turns(chosen: Sequence[str], case: Case, rounds: int) -> Iterator[str]:
    """Every second round in the opposite order."""
    able = [name for name in chosen if name == "ours" or case.peer_events]
    for number in range(rounds):
        yield from reversed(able) if number % 2 else able


def measure(lab: Lab, case: Case, sizes: Sizes, chosen: Sequence[str], report: Report) -> None:
    kind = case.destination
    for name in in_turns(chosen, case, sizes.repeat):
        events = sizes.events_of(case, name)
        done = drain(lab, SYSTEMS[name](), events, KEYS, kind=kind)
        report.add("drain", f"{kind}, {name}", done.row())
        if kind == "sqs" and name == "ours":
            # At once: it still becomes faster by the minute, as its JVM compiles.
            server = lab.destination(kind)
            assert isinstance(server, SqsQueues)
            report.add("limit", kind, {"events/s": round(server.limit(sizes.limit_seconds))})
    if case.events_per_second:
        for name in in_turns(chosen, case, sizes.repeat):
            system, rate = SYSTEMS[name](), case.events_per_second
            paced = steady(lab, system, rate, sizes.seconds, KEYS, kind=kind)
            report.add("latency", f"{kind}, {name}", paced.row())


def judge(report: Report, cases: Sequence[Case]) -> None:
    def rate(kind: str, system: str = "ours") -> float | None:
        return report.median("drain", f"{kind}, {system}", "warm")

    for case in cases:
        kind = case.destination
        if case.bar:
            report.judge(f"{kind}: events/s", rate(kind), case.bar, at_least=True)
        what = f"{kind}: ours : Debezium Server"
        report.judge_ratio(what, rate(kind), rate(kind, "debezium"), RATIO, at_least=True)
    for dead in ("http-50-refused", "http-50-silent"):
        what = f"{dead}: one of fifty dead : all alive"
        report.judge_ratio(what, rate(dead), rate("http-50"), NEAR, at_least=True)
    limit = report.median("limit", "sqs", "events/s")
    report.judge_ratio("sqs: ours : ElasticMQ's limit", rate("sqs"), limit, NEAR, at_least=True)


def rows_of(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """For docs/benchmarks.md: a line per destination."""
    drains, paced, limits = (
        {row[""]: row for row in result["medians"].get(scenario, ())}
        for scenario in ("drain", "latency", "limit")
    )
    rows = []
    for kind in dict.fromkeys(name.rpartition(", ")[0] for name in drains):
        ours, theirs = (drains.get(f"{kind}, {name}") for name in SYSTEMS)
        row = {"destination": kind}
        for name, found in zip(SYSTEMS, (ours, theirs), strict=True):
            at_rate = paced.get(f"{kind}, {name}")
            row[f"{name}: events/s"] = f"{found['warm']:,.0f}" if found else ""
            row[f"{name}: CPU us (relay, PG, server)"] = _cpu(found)
            row[f"{name}: p50 / p99 ms"] = (
                f"{at_rate['p50 ms']:g} / {at_rate['p99']:g}" if at_rate else ""
            )
        row["ratio"] = f"{ours['warm'] / theirs['warm']:.1f}" if ours and theirs else ""
        if limit := limits.get(kind):
            row["destination"] += f" (its limit: {limit['events/s']:,.0f})"
        rows.append(row)
    return rows


def _cpu(found: Mapping[str, Any] | None) -> str:
    if not found:
        return ""
    parts = ", ".join(f"{found[part]:.0f}" for part in ("relay", "PG", "server"))
    return f"{found['CPU']:.0f} ({parts})"


def versions() -> dict[str, str]:
    asked = ["dpkg-query", "--show", "--showformat=${Package} ${Version}\n", *PACKAGES]
    found = subprocess.run(asked, capture_output=True, text=True).stdout
    debian = dict(line.split() for line in found.splitlines())
    return {**debian, "debezium-server": DEBEZIUM}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.publishers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it work at all?")
    parser.add_argument("--kind", action="append", choices=CASES, help="may be repeated")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="may be repeated")
    parser.add_argument("--events", type=int, help="events per drain; fewer for slow peers")
    parser.add_argument("--repeat", type=int, help="runs of each case")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="RESULT",
        help="measure nothing: print a result file as the table of docs/benchmarks.md",
    )
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.table:
        print(markdown(rows_of(json.loads(given.table.read_text()))))
        return
    chosen = asdict(QUICK if given.quick else Sizes())
    chosen |= {k: v for k in ("events", "repeat") if (v := getattr(given, k))}
    sizes = Sizes(**chosen)
    systems = given.system or list(SYSTEMS)
    kinds = given.kind or list(CASES)
    report = Report("publishers", {**asdict(sizes), "versions": versions()})
    if "debezium" in systems:
        report.log(f"Debezium Server: {debezium_home()}, {java_of_debezium()}")
    failed = []
    for kind in kinds:
        report.log(f"{kind}: starting PostgreSQL and the server")
        # A lab for each, so that servers of other kinds take no part of the machine.
        with lab() as servers:
            for case in CASES[kind]:
                try:
                    measure(servers, case, sizes, systems, report)
                except Exception as error:  # what the others have to say is still worth having
                    failed.append(case.destination)
                    report.log(f"{case.destination}: FAILED: {error!r}")
    judge(report, [case for kind in kinds for case in CASES[kind]])
    report.print()
    path = report.write()
    print("\n" + markdown(rows_of(json.loads(path.read_text()))))
    print(f"\nwritten to {path}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
