"""
`python -m outbox_spark --config replay.json`: one attempt at one replay, from start to end.

How it ended is said four times over: in the log, on /status until the process is gone, in the
container's termination message (the same report), and by the exit code: 0 done, 1 another attempt
may succeed, 2 none will, 143 told to stop.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from outbox_core.contract.reasons import LastWords
from outbox_core.contract.replay import Exit, ReplaySettings, load_replay
from outbox_core.contract.settings import Log
from outbox_core.errors import Defect, OutboxError
from outbox_core.observe import logs, termination
from outbox_core.observe.health import Health
from outbox_core.observe.server import Server
from outbox_spark import stopping
from outbox_spark.driver import Driver
from outbox_spark.metrics import Metrics
from outbox_spark.outcome import TOLD_TO_STOP, exit_of
from outbox_spark.progress import Board

log = logging.getLogger("outbox.replay")

CONFIG = Path("/etc/outbox/replay/replay.json")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="outbox_spark", description="Replay events in bulk.")
    parser.add_argument("--config", type=Path, default=CONFIG, help="the replay, as JSON")
    given = parser.parse_args(arguments)
    logs.set_up(Log())
    try:
        settings = load_replay(given.config)
    except OutboxError as error:
        board = Board("")  # whose it is, nobody knows
        code = failed(error, board, begun=False)
    else:
        logs.set_up(settings.log)
        board = Board(settings.id)
        code = attempt(settings, board)
    termination.leave(board.report().last_words())
    return code


def attempt(settings: ReplaySettings, board: Board) -> int:
    health = Health()
    driver = Driver(settings, board, health)
    with ExitStack() as stack:
        try:
            stopping.listen()
            server = Server(settings.http, health, Metrics(), board.report)
            server.start()
            stack.callback(server.stop)
            driver.run()
            stopping.listen_no_more()
        except KeyboardInterrupt:  # Told, or a Ctrl-C that Spark has taken for itself
            stopping.listen_no_more()
            driver.stop()
            return TOLD_TO_STOP
        except OutboxError as error:
            stopping.listen_no_more()
            return ended(driver, error, board)
        except Exception as error:
            stopping.listen_no_more()
            log.exception("a defect", extra={"event": "defect"})
            return ended(driver, Defect(f"{error!r}: the log has the stack trace"), board)
    return Exit.DONE


def ended(driver: Driver, error: OutboxError, board: Board) -> int:
    """In the database, too, if it lets us: there nobody sees pods."""
    words = LastWords.about(error)
    if driver.begun:
        driver.failed(f"{words.reason}: {words.message}")
    return failed(error, board, driver.begun)


def failed(error: OutboxError, board: Board, begun: bool) -> int:
    words = LastWords.about(error)
    code = exit_of(error, begun)
    board.say(
        stage="Failed", reason=words.reason, message=words.message, rate=0.0, seconds_left=None
    )
    log.error(words.message, extra={"event": "failed", "reason": words.reason, "exit": code})
    return code


if __name__ == "__main__":
    sys.exit(main())
