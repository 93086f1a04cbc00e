"""
One attempt at a pipeline, from start to end: signals, the one port, the end of it.

Called by `__main__` and by the file that `spark-submit` runs. What is to be done is the pipeline's
(`replay`); which exit code an error has is judged in `exits`.

How it ended is reported four times over: in the log, on /status until the process is gone, in the
container's termination message (the same report), and by the exit code: 0 done, 1 another attempt
may succeed, 2 none will, 143 stopped by a signal.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from outbox_core.contract.reasons import LastWords
from outbox_core.contract.replay import Exit
from outbox_core.contract.report import ReportPart
from outbox_core.contract.settings import Http, Log
from outbox_core.errors import Defect, OutboxError
from outbox_core.observe import logs, termination
from outbox_core.observe.health import Health
from outbox_core.observe.server import Server, Shown
from outbox_spark import stopping
from outbox_spark.exits import TOLD_TO_STOP, exit_of
from outbox_spark.report import NOTHING_MOVES, LiveReport

log = logging.getLogger("outbox.replay")


class ProcessSettings(Protocol):
    """What every pipeline's settings have."""

    @property
    def id(self) -> str: ...
    @property
    def http(self) -> Http: ...
    @property
    def log(self) -> Log: ...


class Attempt(Protocol):
    """One attempt at a pipeline's work. Every step of it may be repeated by the next attempt."""

    begun: bool
    """The store let us in, and knows what the work is about."""

    def run(self) -> None:
        """To the end, or an OutboxError that explains why not."""

    def stop(self) -> None:
        """Somebody ended us: write it down, and what is done until then."""

    def failed(self, why: str) -> None:
        """Write it down; another attempt, if there is one, goes on."""


S = TypeVar("S", bound=ProcessSettings)
R = TypeVar("R", bound=ReportPart)


@dataclass(frozen=True)
class Pipeline(Generic[S, R]):
    """What `main` needs to know of a pipeline."""

    purpose: str
    """A sentence, for --help."""
    config: Path
    """Where its settings are unless --config is given."""
    load: Callable[[Path], S]
    first_report: Callable[[str], R]
    """Of the work with this id, before anything was done. It has the fields `stage`, `reason`,
    `message`, `rate`, `seconds_left` and `observed_at`."""
    last_words: Callable[[R], str]
    """A report as the termination message."""
    metrics: Callable[[], Shown[R]]
    attempt: Callable[[S, LiveReport[R], Health], Attempt]


def main(pipeline: Pipeline[S, R], arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="outbox_spark", description=pipeline.purpose)
    parser.add_argument(
        "--config", type=Path, default=pipeline.config, help="its settings, as JSON"
    )
    given = parser.parse_args(arguments)
    logs.set_up(Log())
    try:
        settings = pipeline.load(given.config)
    except OutboxError as error:
        report = LiveReport(pipeline.first_report(""))  # whose it is, nobody knows
        code = report_failure(error, report, begun=False)
    else:
        logs.set_up(settings.log)
        report = LiveReport(pipeline.first_report(settings.id))
        code = run_attempt(pipeline, settings, report)
    termination.write(pipeline.last_words(report.current()))
    return code


def run_attempt(pipeline: Pipeline[S, R], settings: S, report: LiveReport[R]) -> int:
    health = Health()
    attempt = pipeline.attempt(settings, report, health)
    with ExitStack() as stack:
        try:
            stopping.listen()
            server = Server(settings.http, health, pipeline.metrics(), report.current)
            server.start()
            stack.callback(server.stop)
            attempt.run()
            stopping.listen_no_more()
        except KeyboardInterrupt:  # StopRequested, or a Ctrl-C that Spark has taken for itself
            stopping.listen_no_more()
            attempt.stop()
            return TOLD_TO_STOP
        except OutboxError as error:
            stopping.listen_no_more()
            return end(attempt, error, report)
        except Exception as error:
            stopping.listen_no_more()
            log.exception("a defect", extra={"event": "defect"})
            return end(attempt, Defect(f"{error!r}: the log has the stack trace"), report)
    return Exit.DONE


def end(attempt: Attempt, error: OutboxError, report: LiveReport[R]) -> int:
    """In the database, too, if it lets us: there nobody sees pods."""
    if attempt.begun:
        words = LastWords.about(error)
        attempt.failed(f"{words.reason}: {words.message}")
    return report_failure(error, report, attempt.begun)


def report_failure(error: OutboxError, report: LiveReport[R], begun: bool) -> int:
    words = LastWords.about(error)
    code = exit_of(error, begun)
    report.update(stage="Failed", reason=words.reason, message=words.message, **NOTHING_MOVES)
    log.error(words.message, extra={"event": "failed", "reason": words.reason, "exit": code})
    return code
