"""
`make bench-peers`: ours compared with Debezium Server and faststream-outbox, on the same work.

First each system drains once, which does not count. Then the peers are tuned: a sweep tries several
settings of each, and the best for each kind of work are used and printed. Then everything is done
three times in turns (ours, peer, ours, peer), every second round in the opposite order: absolute
figures change with the machine and the hour, ratios within a round hardly do. Medians are judged by
`bench.bars`, drawn by `bench.plots`, and written to build/results.json after every step.

Ours runs with its default settings. Debezium is always ordered: both our modes are compared to it.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench import bars, plots, tuning
from bench.contest import QUICK, SCENARIOS, SWEEP, SYSTEMS, Sizes, Tuned, plan, warm_ups
from bench.lab import lab
from bench.peers_install import debezium_home, java_of_debezium, python_of_faststream
from bench.plan import Interrupted, Journal, carry_out, minutes, resume
from bench.report import Report

RESULTS = Path("build/results.json")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    yes_or_no = argparse.BooleanOptionalAction
    rates = ", ".join(f"{rate:g}" for rate in Sizes.rates)
    add("--quick", action="store_true", help="small numbers, no sweep: does it work at all?")
    add("--only", action="append", choices=SCENARIOS, help="only this work; may be repeated")
    add("--system", action="append", choices=SYSTEMS, help="only this one; may be repeated")
    add("--events", type=int, help=f"events per drain (default {Sizes.events:,})")
    add("--seconds", type=float, help=f"of latency measured (default {Sizes.seconds:g})")
    add("--repeat", type=int, help=f"rounds, of which medians are taken (default {Sizes.repeat})")
    text = f"events/s at which CPU per event is measured; may be repeated (default {rates})"
    add("--rate", type=float, action="append", dest="rates", metavar="RATE", help=text)
    add("--rate-seconds", type=float, help=f"at each rate (default {Sizes.rate_seconds:g})")
    text = (
        "tune the peers first (the default, except with --quick). Without: the choice of the last"
        f" sweep ({tuning.REMEMBERED}), or what is built in"
    )
    add("--sweep", action=yes_or_no, help=text)
    add("--sweep-events", type=int, help=f"per drain of a sweep (default {Sizes.sweep_events:,})")
    add("--sweep-seconds", type=float, help=f"per steady run (default {Sizes.sweep_seconds:g})")
    text = "drain once with each system before anything counts (the default)"
    add("--warm-up", action=yes_or_no, default=True, help=text)
    text = (
        "the file to write, after every step (default %(default)s); what is there is kept as"
        " *.previous.json"
    )
    add("--results", type=Path, default=RESULTS, help=text)
    text = (
        "do what that file lacks, because it was interrupted or has failed; other options as before"
    )
    add("--continue", action="store_true", dest="continued", help=text)
    text = "where to draw: by default a whole run into docs/plots, a part of one into build/plots"
    add("--plots", type=Path, metavar="FOLDER", help=text)
    add("--plan", action="store_true", help="measure nothing: list the steps, with an estimate")
    return parser


def sizes_of(given: argparse.Namespace) -> Sizes:
    chosen = asdict(QUICK if given.quick else Sizes())
    chosen |= {k: v for k in chosen if (v := getattr(given, k)) is not None}
    return Sizes(**{**chosen, "rates": tuple(sorted(chosen["rates"]))})


class Comparison:
    """One run: its settings, its report, and the file that they are in."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.sizes = sizes_of(given)
        self.only: Sequence[str] = given.only or SCENARIOS
        self.systems: Sequence[str] = given.system or SYSTEMS
        self.sweep: bool = not given.quick if given.sweep is None else given.sweep
        settings = {
            **asdict(self.sizes),
            "only": sorted(self.only),
            "systems": sorted(self.systems),
            "sweep": self.sweep,
            "versions": tuning.VERSIONS,
        }
        self.whole = self.sizes == Sizes() and not (given.only or given.system) and self.sweep
        self.report = Report("peers", settings)
        self.path: Path = given.results
        self.journal = Journal()
        if given.continued:
            self.journal, self.report.runs = resume(self.path, settings)
        self.tuned = Tuned(self.report, {} if self.sweep else tuning.remembered())
        self.steps = plan(self.sizes, self.only, self.systems, self.sweep, self.tuned)
        self._warm_up: bool = given.warm_up

    def measure(self) -> None:
        log = self.report.log
        log(f"{len(self.steps)} steps; results so far are always in {self.path}")
        if "debezium" in self.systems:
            log(f"Debezium: {debezium_home()}, {java_of_debezium()}")
        if "faststream" in self.systems:
            log(f"faststream-outbox: {python_of_faststream()}")
        if not self.journal.left(self.steps):
            return
        log("starting PostgreSQL and Kafka, and warming Kafka up: about a minute")
        with lab() as servers:
            servers.destination("kafka")
            if self._warm_up:
                steps = list(warm_ups(self.systems, self.sizes))
                carry_out(servers, steps, Journal(), self.report, lambda: None)
            carry_out(servers, self.steps, self.journal, self.report, self.write)

    def write(self) -> None:
        chosen = self.tuned.chosen(self.systems)
        self.report.extra = {
            "chosen": {
                peer: {work: tuning.describe(choice) for work, choice in works.items()}
                for peer, works in chosen.items()
            },
            "bars": bars.as_json(self.report.runs),
            "journal": asdict(self.journal),
        }
        self.report.write(self.path)

    def print(self) -> None:
        self.report.print()
        chosen = self.tuned.chosen(self.systems)
        if chosen:
            print("\nsettings of the peers")
            print("\n".join(tuning.lines(chosen)))
        print("\nbars (medians; ratios to the best peer of this run)")
        print(bars.text(self.report.runs))

    def remember(self) -> None:
        """Only what was swept to the end."""
        left = [step for step in self.journal.left(self.steps) if step.kind.startswith(SWEEP)]
        if self.sweep and not left and {*SCENARIOS} == {*self.only}:
            tuning.remember(self.tuned.chosen(self.systems))


def main() -> None:
    parser = arguments()
    given = parser.parse_args()
    try:
        run = Comparison(given)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    if given.plan:
        waiting = run.journal.left(run.steps)
        for step in waiting:
            print(f"{minutes(step.guess_seconds):>8}  {step.name}")
        print(f"about {minutes(run.journal.estimate(run.steps, waiting))}, and the warm-up")
        return
    if run.path.exists() and not given.continued:
        run.path.replace(run.path.with_suffix(".previous.json"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    try:
        run.measure()
    except (Interrupted, KeyboardInterrupt) as stop:
        interrupted = True
        run.report.log(f"interrupted {stop}: this is what was measured until then")
    if not run.report.runs:
        sys.exit("nothing was measured")
    run.write()
    run.print()
    run.remember()
    folder = given.plots or Path("docs/plots" if run.whole and not interrupted else "build/plots")
    drawn = plots.draw(run.report.runs, folder)
    print("\n" + "\n".join(f"drawn {path}" for path in drawn))
    print(f"written to {run.path}")
    for name, why in run.journal.failed.items():
        print(f"FAILED: {name}: {why}")
    if run.journal.left(run.steps):
        print("what is missing is measured by the same command with --continue")
        sys.exit(130 if interrupted else 1)


if __name__ == "__main__":
    main()
