"""
Tasks: what runs on the executors. Each takes a replay's chunks from the plan until none is left.

Called by Spark, by name: `engine` sends the name and the settings, never code or rows. A task keeps
no state: the ledger records what is done. So it does not matter if a task dies, runs again or has a
speculative twin: another takes what it did not do.
"""

import logging
import os
import socket
import time

from outbox_core.contract.replay import ReplaySettings
from outbox_core.errors import OutboxError, StoreUnavailable
from outbox_core.observe import logs
from outbox_core.store import replays
from outbox_spark.retrying_store import NOT_WORTH_WAITING, RetryingStore

log = logging.getLogger("outbox.replay")

LONGEST_WAIT_SECONDS = 1.0
"""To keep the pace, which may change meanwhile."""
FIRST_BUSY_PAUSE_SECONDS, LONGEST_BUSY_PAUSE_SECONDS = 0.002, 0.5
"""While others work on all the chunks that are left; doubled each time."""


def take_chunks(settings_json: str, number: int) -> OutboxError | None:
    """Take chunks until none is left. `engine.Task` explains which errors are returned and which
    are raised."""
    settings = ReplaySettings.model_validate_json(settings_json)
    logs.set_up(settings.log)
    worker = f"{socket.gethostname()}/{number}.{os.getpid()}"  # a twin has the same number
    try:
        with RetryingStore(
            settings.store,
            f"outbox-replay {settings.relay} {worker}",
            statement_timeout=settings.store.statement_timeout.total_seconds(),
        ) as store:
            chunks, events = take_all(store, settings.id, worker)
    except StoreUnavailable as error:
        if not isinstance(error, NOT_WORTH_WAITING):
            raise
        return error
    except OutboxError as error:
        return error
    log.info(
        "task %d is done: %d chunks, %d events given back",
        *(number, chunks, events),
        extra={"event": "task-done", "worker": worker},
    )
    return None


def take_all(store: RetryingStore, replay_id: str, worker: str) -> tuple[int, int]:
    """How many chunks and events were done: only for the log, because answers may be lost."""
    chunks = events = 0
    pause = FIRST_BUSY_PAUSE_SECONDS
    while True:
        taken = store.ask(lambda conn: replays.take(conn, replay_id, worker))
        match taken.outcome:
            case "done":
                return chunks, events
            case "wait":
                time.sleep(min(taken.wait, LONGEST_WAIT_SECONDS))
            case "busy":
                time.sleep(pause)
                pause = min(LONGEST_BUSY_PAUSE_SECONDS, 2 * pause)
            case _:
                pause = FIRST_BUSY_PAUSE_SECONDS
                chunks += 1
                events += taken.replayed
