"""
`make bench-replay`: bulk replay. How fast without a throttle, and how much it delays live events.

Spark, PostgreSQL, Kafka, the relay, producer and consumer share this machine: live events are
delayed more than where Spark has machines of its own.
"""

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import psycopg

from bench.lab import Lab, Site, lab
from bench.report import Report
from bench.scenarios.growth import finished
from bench.scenarios.requeue import (
    UNTHROTTLED_EVENTS_PER_SECOND,
    WAYS,
    Driver,
    requeue,
    single_statement,
)
from bench.scenarios.steady import Beside, nothing, steady
from bench.systems.ours import Ours

LIVE_EVENTS_PER_SECOND = 200.0
"""Rate of the live events."""
SETTLE_SECONDS = 3.0
"""From the first chunk to the measurement: by then all tasks of Spark have started."""
START_TIMEOUT_SECONDS = 120.0
WARM_UP_SECONDS = 8.0
"""Until live events are measured."""
MOST_EVENTS = 1_000_000
"""Live events have larger numbers."""


@dataclass(frozen=True)
class Sizes:
    events: int = MOST_EVENTS
    live_events: int = 200_000
    seconds: float = 40
    repeat: int = 3


QUICK = Sizes(events=20_000, live_events=50_000, seconds=6, repeat=1)


def speed(lab: Lab, sizes: Sizes, report: Report) -> None:
    title = f"requeue {sizes.events:,} published events"
    report.log(f"{title}: making them")
    with finished(lab, Ours(), sizes.events) as template:
        for _ in range(sizes.repeat):
            for name, how in WAYS.items():
                report.add(title, name, requeue(lab, template, sizes.events, how).row())
    one, batched, spark = (report.median(title, name, "rows/s") for name in WAYS)
    report.judge_ratio("rows/s: two Spark tasks : one statement", spark, one, 1.5, at_least=True)
    report.judge_ratio("rows/s: two Spark tasks : batches", spark, batched, 1.0, at_least=True)


def at_the_default_rate(site: Site) -> Callable[[], None]:
    """It runs during the whole measurement, which begins when it has settled."""
    driver = Driver(site)
    driver.start()
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    with psycopg.connect(site.dsn, autocommit=True) as conn:
        while not conn.execute("SELECT 1 FROM outbox.replay_ledger LIMIT 1").fetchone():
            if not driver.running or time.monotonic() > deadline:
                raise RuntimeError(f"no chunk was taken:\n{driver.log_tail()}")
            time.sleep(0.1)
    time.sleep(SETTLE_SECONDS)
    return driver.stop


def without_a_throttle(site: Site) -> Callable[[], None]:
    """It takes only seconds, so it begins with the measurement: Spark takes as long to start."""
    driver = Driver(site, UNTHROTTLED_EVENTS_PER_SECOND, yields=False)
    driver.start()
    return driver.stop


def in_one_statement(site: Site) -> Callable[[], None]:
    """This takes only seconds, too."""
    thread = threading.Timer(WARM_UP_SECONDS, single_statement, [site])
    thread.start()
    return thread.join


BESIDE: dict[str, Beside] = {
    "no replay": nothing,
    "replay at the default rate": at_the_default_rate,
    "replay without a throttle": without_a_throttle,
    "one statement": in_one_statement,
}


def live(lab: Lab, sizes: Sizes, report: Report) -> None:
    title = f"live events, {LIVE_EVENTS_PER_SECOND:g}/s"
    report.log(f"{title}: making {sizes.live_events:,} published events to be replayed beside them")
    with finished(lab, Ours(), sizes.live_events) as template:
        for _ in range(sizes.repeat):
            for name, beside in BESIDE.items():
                done = steady(
                    *(lab, Ours(), LIVE_EVENTS_PER_SECOND, sizes.seconds, 1000),
                    template=template,
                    beside=beside,
                )
                report.add(title, name, done.row())
    alone, default, *_ = (report.median(title, name, "p99") for name in BESIDE)
    report.judge_ratio("live p99: at the default rate : no replay", default, alone, 2.0)


SCENARIOS: dict[str, Callable[[Lab, Sizes, Report], None]] = {"speed": speed, "live": live}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it work at all?")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="may be repeated")
    parser.add_argument("--events", type=int, help=f"events to requeue, at most {MOST_EVENTS}")
    parser.add_argument("--repeat", type=int, help="runs of each case")
    arguments = parser.parse_args()
    chosen = asdict(QUICK if arguments.quick else Sizes())
    chosen |= {k: v for k in ("events", "repeat") if (v := getattr(arguments, k))}
    sizes = Sizes(**chosen)
    if sizes.events > MOST_EVENTS:
        parser.error(f"at most {MOST_EVENTS} events")
    report = Report("replay", asdict(sizes))
    report.log("starting PostgreSQL and Kafka")
    with lab() as servers:
        for name in arguments.only or SCENARIOS:
            SCENARIOS[name](servers, sizes, report)
    report.print()
    print(f"\nwritten to {report.write()}")


if __name__ == "__main__":
    main()
