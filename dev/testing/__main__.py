"""
Usage: python -m dev.testing [SUITE ...]

Runs all suites of tests/, or those that are named (`store`, `e2e`, `broker/nats`), several at once.
Prints what a suite printed as soon as that has failed, and a table at the end; all output stays in
build/tests. For a single test call pytest itself.

Environment:
  OUTBOX_TEST_LANES  how many suites at once; default: one for each processor; one more for a suite
                     that mostly waits
  KEEP               leave the clusters running that suites have started
and what dev.cluster reads.
"""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

from dev.cluster.errors import ClusterError

from .lanes import Lane, clusters_taken_down, default_count, make_lanes
from .results import slowest, table
from .running import ROOT, Run
from .suites import Suite, choose, find

OUTPUT = ROOT / "build" / "tests"
INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    if any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        suites = choose(find(ROOT / "tests"), arguments)
        count = int(os.environ.get("OUTBOX_TEST_LANES") or default_count())
        lanes = make_lanes(min(count, len(suites)), os.environ)
        with clusters_taken_down(lanes):
            return run(suites, lanes, OUTPUT)
    except (LookupError, ClusterError) as error:
        print(f"tests: {error}", file=sys.stderr)
        return 2


def run(suites: list[Suite], lanes: list[Lane], output: Path) -> int:
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    all_of_them = Run(suites, output)
    interrupted = not asyncio.run(finished(all_of_them, lanes))
    results = all_of_them.results
    print(f"\n{slowest(results)}\n\n{table(results, all_of_them.elapsed_seconds)}", flush=True)
    if interrupted:
        print(f"tests: interrupted; {len(suites) - len(results)} suites have no result")
        return INTERRUPTED
    return 0 if all(result.passed for result in results) else 1


async def finished(run: Run, lanes: list[Lane]) -> bool:
    """False: somebody has interrupted it, and what ran has ended."""
    running = asyncio.create_task(run.in_lanes(lanes))

    def interrupt() -> None:
        """The first time in good order; a person who asks again does not want to wait."""
        if running.cancelling():
            run.kill()
        else:
            print("tests: interrupted; the suites end", flush=True)
            running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    try:
        await running
    except asyncio.CancelledError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
