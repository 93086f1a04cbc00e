"""
The bulk replay: plans it, lets Spark do the work, keeps the pace, reports.

Called by `main`, which turns its end into a termination message and an exit code. Every step may be
repeated: a second attempt at the same replay finds what the first one did and continues there.
"""

import logging
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from outbox_core import __version__
from outbox_core.contract.replay import Preview, ReplayReport, ReplaySettings, load_replay
from outbox_core.errors import EngineFailed, OutboxError, StoreUnavailable
from outbox_core.observe.health import Health
from outbox_core.store import replays
from outbox_core.store.connection import Connection
from outbox_core.store.migrate import require_current
from outbox_core.store.replays import Known, Progress
from outbox_spark import stopping, tasks
from outbox_spark.engine import Engine
from outbox_spark.main import Pipeline
from outbox_spark.replay_metrics import ReplayMetrics
from outbox_spark.report import NO_PROGRESS, LiveReport, Speed, seconds_left
from outbox_spark.retrying_store import PATIENCE_SECONDS, RetryingStore
from outbox_spark.throttle import Throttle

log = logging.getLogger("outbox.replay")

CHECK_EVERY_SECONDS = 1.0
"""Check the progress, and how long live events wait."""
LOG_EVERY_SECONDS = 5.0
"""Log the progress."""
STOP_TIMEOUT_SECONDS = 5.0
"""For each statement by which an attempt records its end."""

STOPPED = "stopped; what is done stays done, and another attempt continues from there"


class ReplayAttempt:
    """The `Attempt` that `main` runs."""

    def __init__(
        self, settings: ReplaySettings, report: LiveReport[ReplayReport], health: Health
    ) -> None:
        self._settings, self._report, self._health = settings, report, health
        self._speed = Speed()
        self._logged_at = float("-inf")
        self.begun = False
        """The store has accepted us, and knows the relay."""

    def run(self) -> None:
        """Runs to the end, or raises an OutboxError that explains why not."""
        if self._settings.dry_run:
            self._preview()
            return
        known = self._plan()
        with self._store(self._settings.store.statement_timeout.total_seconds()) as store:
            progress = self._check(store)
            if not known.finished:
                if progress.chunks_done < progress.chunks:
                    progress = self._replay(store, known)
                store.ask(lambda conn: replays.finish(conn, self._settings.id))
        text = f"{progress.replayed} of {progress.matched} events were given back to the relay"
        self._report.update(stage="Succeeded", rate=0.0, seconds_left=0.0, message=text)
        log.info(text, extra={"event": "finished", **as_fields(progress)})

    def stop(self) -> None:
        """We were asked to stop: record that, and the progress so far."""
        self._report_stop()
        log.info(STOPPED, extra={"event": "stopped"})
        self._record_end()

    def failed(self, why: str) -> None:
        """Record the failure; another attempt, if there is one, continues."""
        self._record_end(why)

    def _report_stop(self) -> None:
        self._report.update(stage="Stopped", message=STOPPED, **NO_PROGRESS)

    def _record_end(self, why: str = "") -> None:
        if self._settings.dry_run:
            return
        try:
            # A process that is stopped has no minutes to wait until a store is back.
            with self._store(statement_timeout=STOP_TIMEOUT_SECONDS, patience=0.0) as store:
                # Even if we have not begun: an earlier attempt may have been killed.
                if store.ask(lambda conn: replays.stop(conn, self._settings.id, why)):
                    self._check(store)
                    # No task can change them now: see replay_take in the schema.
                    self._report.update(final=True, **NO_PROGRESS)
        except OutboxError as error:
            log.warning("could not record the end of this attempt: %s", error)

    def _preview(self) -> None:
        self._report.update(stage="Planning", message="counting what would be replayed")

        def count(conn: Connection) -> tuple[int, Preview]:
            require_current(conn)
            return replays.preview(conn, self._settings)

        with self._store() as store:
            matched, preview = store.ask(count)
        text = f"a dry run: {matched} events match, and nothing was changed"
        self._report.update(stage="Succeeded", matched=matched, preview=preview, message=text)
        log.info(text, extra={"event": "previewed", "matched": matched})

    def _plan(self) -> Known:
        settings = self._settings

        def begin(conn: Connection) -> Known:
            require_current(conn)
            return replays.begin(conn, settings)

        with self._store() as store:
            known = store.ask(begin)
            self.begun = True
            self._health.clear("start")
            if not known.planned:
                self._report.update(stage="Planning", message="freezing the selection")
                matched = store.ask(lambda conn: replays.plan(conn, settings, known))
                log.info("%d events match", matched, extra={"event": "planned"})
        return known

    def _replay(self, store: RetryingStore, known: Known) -> Progress:
        """Let Spark do what is left of the plan."""
        settings = self._settings
        self._report.update(stage="Running", message="starting Spark")
        throttle = Throttle(
            rate=settings.rate.events_per_second,
            usual=store.ask(lambda conn: replays.live_age(conn, known.relay_id)),
            yields=settings.rate.yield_to_live,
        )
        pace = throttle.rate
        store.ask(lambda conn: replays.set_pace(conn, settings.id, pace))
        engine = Engine(
            f"replay {settings.id}",
            partial(tasks.take_chunks, settings.model_dump_json(by_alias=True)),
            settings.connections,
            verbose=settings.log.level == "debug",
        )
        try:
            stopping.raise_if_requested()
            engine.start()
            self._report.update(pace=pace, message="waiting for executors")
            before = self._check(store)
            while not engine.wait(CHECK_EVERY_SECONDS):
                stopping.raise_if_requested()
                if self._check(store).chunks_done > before.chunks_done:
                    waited = store.ask(lambda conn: replays.live_age(conn, known.relay_id))
                    throttle = throttle.seen(waited)
                    pace = self._keep_pace(store, throttle, pace, waited)
        except KeyboardInterrupt:
            self._report_stop()  # at once: we may be killed before Spark has stopped
            raise
        finally:
            engine.stop()
        progress = self._check(store)
        if progress.chunks_done < progress.chunks:
            raise EngineFailed(
                f"Spark ended its job with {progress.chunks - progress.chunks_done} of "
                f"{progress.chunks} chunks left"
            )
        return progress

    def _check(self, store: RetryingStore) -> Progress:
        """Read the progress, and report it."""

        def read(conn: Connection) -> tuple[datetime, Progress]:
            return datetime.now(UTC), replays.progress(conn, self._settings.id)

        counted_at, progress = store.ask(read)
        done = progress.replayed + progress.skipped
        now = time.monotonic()
        speed = self._speed.seen(now, done)
        self._report.update(
            matched=progress.matched,
            replayed=progress.replayed,
            skipped=progress.skipped,
            skipped_because=dict(progress.because),
            rate=round(speed, 1),
            seconds_left=seconds_left((progress.matched or 0) - done, speed),
            counted_at=counted_at,
        )
        if progress.matched is not None and now - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = now
            log.info(
                "%d of %d events, %.0f per second",
                *(done, progress.matched, speed),
                extra={"event": "progress", **as_fields(progress)},
            )
        return progress

    def _keep_pace(
        self, store: RetryingStore, throttle: Throttle, pace: float, waited: float
    ) -> float:
        allowed = throttle.next(pace, waited)
        if allowed != pace:
            store.ask(lambda conn: replays.set_pace(conn, self._settings.id, allowed))
        if allowed < throttle.rate:
            text = (
                f"slowed down to {allowed:.0f} events per second: the oldest due event has waited "
                f"{waited:.1f} s"
            )
        else:
            text = "giving events back"
        self._report.update(pace=allowed, message=text)
        return allowed

    def _store(
        self, statement_timeout: float = 0.0, patience: float = PATIENCE_SECONDS
    ) -> RetryingStore:
        """No statement timeout by default: the statements that read every event may take long."""

        def trouble(error: StoreUnavailable) -> None:
            self._health.trouble("store", error)
            self._report.update(message=f"trying again: {error}", **NO_PROGRESS)

        return RetryingStore(
            self._settings.store,
            f"outbox-replay {self._settings.relay} driver",
            statement_timeout=statement_timeout,
            patience=patience,
            on_trouble=trouble,
            on_answer=lambda: self._health.clear("store"),
        )


def as_fields(progress: Progress) -> dict[str, object]:
    """For the log."""
    return {
        "matched": progress.matched,
        "replayed": progress.replayed,
        "skipped": progress.skipped,
        "skipped_because": dict(progress.because),
    }


def first_report(replay_id: str) -> ReplayReport:
    return ReplayReport(
        version=__version__, id=replay_id, stage="Starting", observed_at=datetime.now(UTC)
    )


REPLAY_PIPELINE = Pipeline(
    purpose="Replay events in bulk.",
    config=Path("/etc/outbox/replay/replay.json"),
    load=load_replay,
    first_report=first_report,
    termination_message=ReplayReport.termination_message,
    metrics=ReplayMetrics,
    attempt=ReplayAttempt,
)
