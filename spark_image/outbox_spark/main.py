"""
One attempt at a pipeline, from start to end: signals, the HTTP port, reporting the end.

Called by `__main__` and by the file that `spark-submit` runs. The pipeline (`replay`) does the
work; `exits` decides which exit code an error has.

The end is reported in four places: in the log, on /status until the process is gone, in the
container's termination message (the same report), and by the exit code: 0 done, 1 another attempt
may succeed, 2 none will, 143 stopped by a signal. The termination message is written with every
report, not only with the last: Kubernetes reads it also when the process was killed.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from outbox_core.contract.reasons import TerminationMessage
from outbox_core.contract.replay import Exit
from outbox_core.contract.report import ReportPart
from outbox_core.contract.settings import HttpPort, Log
from outbox_core.errors import Defect, OutboxError
from outbox_core.observe import logs, termination
from outbox_core.observe.health import Health
from outbox_core.observe.server import Shown, StatusServer
from outbox_spark import stopping
from outbox_spark.exits import SIGTERM_EXIT_CODE, exit_of
from outbox_spark.report import NO_PROGRESS, LiveReport

log = logging.getLogger("outbox.replay")


class ProcessSettings(Protocol):
    """What every pipeline's settings have."""

    @property
    def id(self) -> str: ...
    @property
    def http(self) -> HttpPort: ...
    @property
    def log(self) -> Log: ...


class Attempt(Protocol):
    """One attempt at a pipeline's work. Every step of it may be repeated by the next attempt."""

    begun: bool
    """The store has accepted us, and the work could be started."""

    def run(self) -> None:
        """Runs to the end, or raises an OutboxError that explains why not."""

    def stop(self) -> None:
        """We were asked to stop: record that, and the progress so far."""

    def failed(self, why: str) -> None:
        """Record the failure; another attempt, if there is one, continues."""


S = TypeVar("S", bound=ProcessSettings)
R = TypeVar("R", bound=ReportPart)


@dataclass(frozen=True)
class Pipeline(Generic[S, R]):
    """What `main` needs to know about a pipeline."""

    purpose: str
    """A sentence, for --help."""
    config: Path
    """Where its settings are, without --config."""
    load: Callable[[Path], S]
    first_report: Callable[[str], R]
    """The report for this id before anything was done. It has the fields `stage`, `reason`,
    `message`, `rate`, `seconds_left` and `observed_at`."""
    termination_message: Callable[[R], str]
    """A report as the termination message."""
    metrics: Callable[[], Shown[R]]
    attempt: Callable[[S, LiveReport[R], Health], Attempt]


def main(pipeline: Pipeline[S, R], arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="outbox_spark", description=pipeline.purpose)
    parser.add_argument(
        "--config", type=Path, default=pipeline.config, help="the settings, as JSON"
    )
    given = parser.parse_args(arguments)
    logs.set_up(Log())
    try:
        settings = pipeline.load(given.config)
    except OutboxError as error:
        report = live_report(pipeline, "")  # the id is unknown
        return report_failure(error, report, begun=False)
    logs.set_up(settings.log)
    return run_attempt(pipeline, settings, live_report(pipeline, settings.id))


def live_report(pipeline: Pipeline[S, R], attempt_id: str) -> LiveReport[R]:
    return LiveReport(
        pipeline.first_report(attempt_id),
        keep=lambda report: termination.write(pipeline.termination_message(report)),
    )


def run_attempt(pipeline: Pipeline[S, R], settings: S, report: LiveReport[R]) -> int:
    health = Health()
    attempt = pipeline.attempt(settings, report, health)
    with ExitStack() as stack:
        try:
            stopping.listen()
            server = StatusServer(settings.http, health, pipeline.metrics(), report.current)
            server.start()
            stack.callback(server.stop)
            attempt.run()
            stopping.ignore_signals()
        except KeyboardInterrupt:  # StopRequested, or a Ctrl-C that Spark has handled
            stopping.ignore_signals()
            attempt.stop()
            return SIGTERM_EXIT_CODE
        except OutboxError as error:
            stopping.ignore_signals()
            return end(attempt, error, report)
        except Exception as error:
            stopping.ignore_signals()
            log.exception("a defect", extra={"event": "defect"})
            return end(attempt, Defect(f"{error!r}: the log has the stack trace"), report)
    return Exit.DONE


def end(attempt: Attempt, error: OutboxError, report: LiveReport[R]) -> int:
    """Report the failure in the database too, if possible: its users do not see pods."""
    if attempt.begun:
        failure = TerminationMessage.about(error)
        attempt.failed(f"{failure.reason}: {failure.message}")
    return report_failure(error, report, attempt.begun)


def report_failure(error: OutboxError, report: LiveReport[R], begun: bool) -> int:
    failure = TerminationMessage.about(error)
    code = exit_of(error, begun)
    report.update(stage="Failed", reason=failure.reason, message=failure.message, **NO_PROGRESS)
    log.error(failure.message, extra={"event": "failed", "reason": failure.reason, "exit": code})
    return code
