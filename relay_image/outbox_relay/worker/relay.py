"""
A relay process from start to stop: registers, starts the threads, waits for a signal, drains.

If the store or the broker is unavailable at the start, it waits, and readiness shows that; what
only a person can fix (the schema, the settings) ends the process with a message.
"""

import gc
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable

from outbox_core import __version__
from outbox_core.contract.settings import RelaySettings
from outbox_core.errors import Defect, OutboxError, SchemaMissing, SchemaTooNew, StoreUnavailable
from outbox_core.observe import logs
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import RelayMetrics
from outbox_core.observe.server import StatusServer
from outbox_core.store.deliveries import UNORDERED
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.publishers.registry import check_publisher, make_publisher
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.context import Context
from outbox_relay.worker.keeper import Keeper
from outbox_relay.worker.listener import Listener
from outbox_relay.worker.paused import PausedPublisher, watch
from outbox_relay.worker.pipeline import Worker
from outbox_relay.worker.polling import Crew
from outbox_relay.worker.reporting import Reporter

log = logging.getLogger("outbox.relay")


class RelayProgram:
    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._context = Context(
            settings=settings,
            relay=0,
            publisher=publisher_for(settings),
            policy=settings.retry.policy(),
            crew=Crew(settings.workers, None if settings.ordering == "Key" else UNORDERED[0]),
            breaker=Breaker(time.monotonic),
            health=Health(),
            metrics=RelayMetrics(),
        )
        self._keeper = Keeper(self._context)
        self._workers_done = threading.Event()
        self.defect: BaseException | None = None

    @property
    def health(self) -> Health:
        return self._context.health

    def stop(self) -> None:
        """Stop claiming; what is in flight is finished."""
        self._context.stopping.set()
        self._context.crew.stop()

    def run(self) -> int:
        """Runs until `stop`; returns 0 if the outcomes of all events in flight were recorded."""
        context, settings = self._context, self._settings
        reporter = Reporter(context)
        server = StatusServer(settings.http, context.health, context.metrics, reporter.report)
        server.start()
        try:
            if not self._register():
                return 0
            log.info(
                "relay %s runs as %s, version %s, ordering %s",
                settings.name,
                settings.owner,
                __version__,
                settings.ordering,
                extra={"event": "started"},
            )
            if settings.paused:
                watch(context, reporter)
                return 0
            workers = [
                self._thread(f"worker-{i}", Worker(i, context).run) for i in range(settings.workers)
            ]
            keeper = self._thread("keeper", lambda: self._keeper.run(self._workers_done))
            if settings.polling.notify:
                self._thread("listener", Listener(context).run)
            context.stopping.wait()
            return self._drain(workers, keeper)
        finally:
            server.stop()
            reporter.close()
            context.publisher.close(settings.publisher.timeout)

    def _register(self) -> bool:
        """Register as soon as the store is available; False if we were stopped first."""
        context = self._context
        pause = 0.2
        while not context.stopping.is_set():
            try:
                with context.open_connection("start") as conn:
                    context.register(conn)
                if not self._settings.paused:
                    self._keeper.join()
            except (SchemaMissing, SchemaTooNew):
                raise
            except StoreUnavailable as error:
                context.health.trouble("store", error)
                self._keeper.close()  # its connection may be the one that broke
                context.stopping.wait(pause)
                pause = min(5.0, pause * 2)
            else:
                context.health.clear("start")
                context.health.clear("store")
                return True
        return False

    def _drain(self, workers: list[threading.Thread], keeper: threading.Thread) -> int:
        context = self._context
        context.health.draining("asked to stop; events in flight are being finished")
        deadline = time.monotonic() + self._settings.drain.total_seconds()
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        clean = not any(w.is_alive() for w in workers)
        self._workers_done.set()
        keeper.join(5.0)
        if not keeper.is_alive():
            try:
                if clean:
                    self._keeper.leave()
            except OutboxError as error:
                log.warning("could not release our lanes: %s", error)
            self._keeper.close()
        if self.defect is not None:
            log.error("stopped by a defect: %r", self.defect, extra={"event": "stopped"})
            return 1
        log.info(
            "stopped"
            if clean
            else "stopped before all outcomes were recorded: the leases of those events will "
            "expire, and they will be sent again",
            extra={"event": "stopped"},
        )
        return 0 if clean else 1

    def _thread(self, name: str, body: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                body()
            except BaseException as error:
                log.exception("%s failed", name, extra={"event": "defect"})
                self.defect = error
                self.stop()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread


def publisher_for(settings: RelaySettings) -> Publisher:
    if settings.paused:
        check_publisher(settings)  # better to report a wrong setting now than when it is resumed
        return PausedPublisher()
    return make_publisher(settings)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Let SIGTERM and SIGINT call `stop`, in a thread of its own: a handler interrupts the main
    thread anywhere, also inside `Event.wait` while that holds the event's lock, and would wait for
    that lock for ever. A SimpleQueue takes an item also in the middle of any of its own calls."""
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def wait() -> None:
        signals.get()
        stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.put(received))


def run_relay(settings: RelaySettings) -> int:
    """The command `outbox-relay run`."""
    logs.set_up(settings.log)
    relay = RelayProgram(settings)
    # A batch is tens of thousands of small objects, all freed by reference counting. Searching them
    # for cycles again and again took a tenth of the relay's CPU time.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    stop_on_signals(relay.stop)
    code = relay.run()
    if relay.defect is not None:
        if isinstance(relay.defect, OutboxError):
            raise relay.defect
        raise Defect(
            f"the relay was stopped by a defect ({relay.defect!r}): the log has the stack trace"
        ) from relay.defect
    return code
