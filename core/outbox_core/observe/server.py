"""
The one HTTP port: /healthz (a restart would not help), /readyz (no troubles), /status (the report,
as JSON) and /metrics. Everything is read-only; nothing here needs a credential.

Used by relays and by a replay's driver: they provide the report and the metrics.
"""

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Generic, Protocol, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from outbox_core.contract.reasons import ProcessReason
from outbox_core.contract.report import ReportPart
from outbox_core.contract.settings import HttpPort
from outbox_core.errors import SettingsError
from outbox_core.observe.health import Health

log = logging.getLogger("outbox.http")

STUCK_AFTER_SECONDS = 60.0
"""Above every timeout after which a connection is tried again."""
ANSWER_WITHIN_SECONDS = 0.5
"""Below every probe's timeout."""

HttpAnswer = tuple[int, str, bytes]
R = TypeVar("R", bound=ReportPart)
R_shown = TypeVar("R_shown", bound=ReportPart, contravariant=True)


class Shown(Protocol[R_shown]):
    """Metrics, some of which come from the report."""

    @property
    def registry(self) -> CollectorRegistry: ...

    def show(self, report: R_shown) -> None:
        """Set the metrics that the report contains; called before each scrape."""


class StatusServer(Generic[R]):
    def __init__(
        self, settings: HttpPort, health: Health, metrics: Shown[R], report: Callable[[], R]
    ) -> None:
        self._health, self._metrics, self._report = health, metrics, report
        self._asking: threading.Thread | None = None
        pages: dict[str, Callable[[], HttpAnswer]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status": self._status,
            "/metrics": self._page_of_metrics,
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                if page is None:
                    body = f"not here; try {' '.join(pages)}\n".encode()
                    self._answer(404, "text/plain", body)
                    return
                try:
                    self._answer(*page())
                except ConnectionError:
                    pass  # the client did not wait for the answer
                except Exception:
                    log.exception("%s failed", self.path, extra={"event": "defect"})
                    self._answer(500, "text/plain", b"failed; see the log\n")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Silent: probes come every few seconds."""

        try:
            self._server = ThreadingHTTPServer((settings.host, settings.port), Handler)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {settings.host}:{settings.port} ({error.strerror}): "
                "choose another http.port, or 0 for any free one"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()
        log.info("listening on port %d", self.port, extra={"event": "listening", "port": self.port})

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _healthz(self) -> HttpAnswer:
        """Alive, whatever the troubles are: a restart does not help a process that waits for a
        store or a broker. But if it has not reached the store for this long, while a report made
        now does, it is stuck, and a new process would not be."""
        lost = self._health.lasting(ProcessReason.STORE_UNREACHABLE, STUCK_AFTER_SECONDS)
        if lost and self._store_answers():
            text = "".join(f"lost: {k}: {v}\n" for k, v in lost.items())
            return 503, "text/plain", text.encode()
        return 200, "text/plain", b"alive\n"

    def _store_answers(self) -> bool:
        """In a thread of its own, one at a time: a probe must not wait for a store that does not
        answer."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._report, name="ask", daemon=True)
            self._asking.start()
        self._asking.join(ANSWER_WITHIN_SECONDS)
        return not self._asking.is_alive() and "status" not in self._health.troubles

    def _readyz(self) -> HttpAnswer:
        troubles = self._health.troubles
        if set(troubles) == {"status"}:
            self._report()  # the last report failed: only a new one shows whether it still does
            troubles = self._health.troubles
        if not troubles:
            return 200, "text/plain", b"ready\n"
        return 503, "text/plain", "".join(f"{k}: {v}\n" for k, v in troubles.items()).encode()

    def _status(self) -> HttpAnswer:
        body = self._report().model_dump_json(by_alias=True, indent=2)
        return 200, "application/json", body.encode() + b"\n"

    def _page_of_metrics(self) -> HttpAnswer:
        self._metrics.show(self._report())
        return 200, CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry)
