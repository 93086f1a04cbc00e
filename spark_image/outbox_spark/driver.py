"""
The driver: freezes the selection, plans, lets Spark work, keeps the pace, reports.

Called by `__main__`, which turns the end of it into last words and an exit code. Every step may be
repeated: a second driver of the same replay finds what the first one did and goes on there.
"""

import logging
import time

from outbox_core.contract.replay import Preview, ReplaySettings
from outbox_core.errors import EngineFailed, OutboxError, StoreUnavailable
from outbox_core.observe.health import Health
from outbox_core.store import replays
from outbox_core.store.connection import Connection
from outbox_core.store.migrate import require_current
from outbox_core.store.replays import Known, Progress
from outbox_spark import stopping
from outbox_spark.engine import Engine
from outbox_spark.patience import PATIENCE, Patient
from outbox_spark.progress import Board, Speed, seconds_left
from outbox_spark.throttle import Throttle

log = logging.getLogger("outbox.replay")

LOOK = 1.0
"""Seconds between two looks at how far it is, and how long live events wait."""
LINE = 5.0
"""Seconds between two lines of progress in the log."""


class Driver:
    def __init__(self, settings: ReplaySettings, board: Board, health: Health) -> None:
        self._settings, self._board, self._health = settings, board, health
        self._speed = Speed()
        self._line_at = float("-inf")
        self.begun = False
        """The store let us in, and knows the relay."""

    def run(self) -> None:
        """To the end, or an OutboxError that says why not."""
        if self._settings.dry_run:
            self._preview()
            return
        known = self._plan()
        with self._store(self._settings.store.statement_timeout.total_seconds()) as store:
            progress = self._look(store)
            if not known.finished:
                if progress.chunks_done < progress.chunks:
                    progress = self._replay(store, known)
                store.ask(lambda conn: replays.finish(conn, self._settings.id))
        text = f"{progress.replayed} of {progress.matched} events were given back to the relay"
        self._board.say(stage="Succeeded", rate=0.0, seconds_left=0.0, message=text)
        log.info(text, extra={"event": "finished", **counts(progress)})

    def stop(self) -> None:
        """Somebody ended us: write it down, and what is done until then."""
        text = "stopped; what is done stays done, and another attempt goes on from there"
        self._board.say(stage="Stopped", rate=0.0, seconds_left=None, message=text)
        log.info(text, extra={"event": "stopped"})
        self._write_down()

    def failed(self, why: str) -> None:
        """Write it down; another attempt, if there is one, goes on."""
        self._write_down(why)

    def _write_down(self, why: str = "") -> None:
        if self._settings.dry_run:
            return
        try:
            # Who ends a process does not wait for minutes until a store is back.
            with self._store(statement_timeout=5.0, patience=0.0) as store:
                # Also where we have not begun: an attempt before us may have been killed.
                if store.ask(lambda conn: replays.stop(conn, self._settings.id, why)):
                    self._look(store)
                    self._board.say(rate=0.0, seconds_left=None)
        except OutboxError as error:
            log.warning("could not write down that it ends here: %s", error)

    def _preview(self) -> None:
        self._board.say(stage="Planning", message="counting what would be replayed")

        def look(conn: Connection) -> tuple[int, Preview]:
            require_current(conn)
            return replays.preview(conn, self._settings)

        with self._store() as store:
            matched, preview = store.ask(look)
        text = f"a dry run: {matched} events match, and nothing was changed"
        self._board.say(stage="Succeeded", matched=matched, preview=preview, message=text)
        log.info(text, extra={"event": "previewed", "matched": matched})

    def _plan(self) -> Known:
        settings = self._settings

        def begin(conn: Connection) -> Known:
            require_current(conn)
            return replays.begin(conn, settings)

        with self._store() as store:
            known = store.ask(begin)
            self.begun = True
            self._health.well("start")
            if not known.planned:
                self._board.say(stage="Planning", message="freezing the selection")
                matched = store.ask(lambda conn: replays.plan(conn, settings, known))
                log.info("%d events match", matched, extra={"event": "planned"})
        return known

    def _replay(self, store: Patient, known: Known) -> Progress:
        """What is left of the plan, by Spark."""
        settings = self._settings
        self._board.say(stage="Running", message="starting Spark")
        throttle = Throttle(
            rate=settings.rate.events_per_second,
            usual=store.ask(lambda conn: replays.live_age(conn, known.relay_id)),
            yields=settings.rate.yield_to_live,
        )
        pace = throttle.rate
        store.ask(lambda conn: replays.set_pace(conn, settings.id, pace))
        engine = Engine(settings)
        try:
            stopping.check()
            engine.start()
            self._board.say(pace=pace, message="waiting for executors")
            before = self._look(store)
            while not engine.wait(LOOK):
                stopping.check()
                if self._look(store).chunks_done > before.chunks_done:
                    waited = store.ask(lambda conn: replays.live_age(conn, known.relay_id))
                    throttle = throttle.seen(waited)
                    pace = self._keep_pace(store, throttle, pace, waited)
        finally:
            engine.stop()
        progress = self._look(store)
        if progress.chunks_done < progress.chunks:
            raise EngineFailed(
                f"Spark ended its job with {progress.chunks - progress.chunks_done} of "
                f"{progress.chunks} chunks left"
            )
        return progress

    def _look(self, store: Patient) -> Progress:
        """At the ledger, for everyone who asks us."""
        progress = store.ask(lambda conn: replays.progress(conn, self._settings.id))
        done = progress.replayed + progress.skipped
        now = time.monotonic()
        speed = self._speed.seen(now, done)
        self._board.say(
            matched=progress.matched,
            replayed=progress.replayed,
            skipped=progress.skipped,
            skipped_because=dict(progress.because),
            rate=round(speed, 1),
            seconds_left=seconds_left((progress.matched or 0) - done, speed),
        )
        if progress.matched is not None and now - self._line_at >= LINE:
            self._line_at = now
            log.info(
                "%d of %d events, %.0f per second",
                *(done, progress.matched, speed),
                extra={"event": "progress", **counts(progress)},
            )
        return progress

    def _keep_pace(self, store: Patient, throttle: Throttle, pace: float, waited: float) -> float:
        allowed = throttle.next(pace, waited)
        if allowed != pace:
            store.ask(lambda conn: replays.set_pace(conn, self._settings.id, allowed))
        if allowed < throttle.rate:
            text = (
                f"slowed down to {allowed:.0f} events per second: the oldest that could go out "
                f"waits {waited:.1f} s"
            )
        else:
            text = "giving events back"
        self._board.say(pace=allowed, message=text)
        return allowed

    def _store(self, statement_timeout: float = 0.0, patience: float = PATIENCE) -> Patient:
        """Without a timeout for what looks at every event: that takes as long as it takes."""

        def trouble(error: StoreUnavailable) -> None:
            self._health.trouble("store", error)
            self._board.say(message=f"trying again: {error}", rate=0.0, seconds_left=None)

        return Patient(
            self._settings.store,
            f"outbox-replay {self._settings.relay} driver",
            statement_timeout=statement_timeout,
            patience=patience,
            on_trouble=trouble,
            on_answer=lambda: self._health.well("store"),
        )


def counts(progress: Progress) -> dict[str, object]:
    return {
        "matched": progress.matched,
        "replayed": progress.replayed,
        "skipped": progress.skipped,
        "skipped_because": dict(progress.because),
    }
