"""
Tasks: what runs on the executors. Each takes chunks from the plan until there are none.

Called by Spark, by name: `engine` ships the name and the settings, never code or rows. A task keeps
nothing: what is done stands in the ledger. So a task that dies, runs again or has a speculative
twin changes nothing, and what was not done by one is taken by another.
"""

import logging
import os
import socket
import time

from outbox_core.contract.replay import ReplaySettings
from outbox_core.errors import OutboxError, StoreUnavailable
from outbox_core.observe import logs
from outbox_core.store import replays
from outbox_spark.patience import SHUT, Patient

log = logging.getLogger("outbox.replay")

LONGEST_WAIT = 1.0
"""Seconds: the pace may have changed meanwhile."""
SHORTEST_BUSY, LONGEST_BUSY = 0.002, 0.5
"""Seconds until one looks again for a chunk that nobody is at; they double."""


def run(settings_json: str, number: int) -> OutboxError | None:
    """
    Until nothing is left.

    An error that another try would meet again is handed back as a value, because Spark would try
    again; one that time may mend is raised, so that Spark does.
    """
    settings = ReplaySettings.model_validate_json(settings_json)
    logs.set_up(settings.log)
    worker = f"{socket.gethostname()}/{number}.{os.getpid()}"  # a twin has the same number
    try:
        with Patient(
            settings.store,
            f"outbox-replay {settings.relay} {worker}",
            statement_timeout=settings.store.statement_timeout.total_seconds(),
        ) as store:
            chunks, events = take_all(store, settings.id, worker)
    except StoreUnavailable as error:
        if not isinstance(error, SHUT):
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


def take_all(store: Patient, replay_id: str, worker: str) -> tuple[int, int]:
    """How many chunks and events: for the log alone, because answers may be lost."""
    chunks = events = 0
    busy = SHORTEST_BUSY
    while True:
        taken = store.ask(lambda conn: replays.take(conn, replay_id, worker))
        match taken.outcome:
            case "done":
                return chunks, events
            case "wait":
                time.sleep(min(taken.wait, LONGEST_WAIT))
            case "busy":
                time.sleep(busy)
                busy = min(LONGEST_BUSY, 2 * busy)
            case _:
                busy = SHORTEST_BUSY
                chunks += 1
                events += taken.replayed
