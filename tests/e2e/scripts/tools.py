"""
Serves the pod `tools` over HTTP: runs the other scripts, and SQL. Called by `fixtures.tools`.

  POST /start {name, environ, script, arguments}  begin one; asked twice, it runs once
  POST /result {name, seconds}   its exit code, null if it still runs after SECONDS, and its output
  POST /stop {name}              end it at once, and all that it started
  POST /sql {dsn, query}         the rows of all statements: columns as text, null as an empty one
  POST /sink/NAME                an endpoint for relays: takes anything
  POST /received {name}          what came there, in its order: headers and body

A request that cannot be served is answered with 422 and the reason. The API server's proxy brings
the requests here: a command in the pod, by `exec`, would cost the node ten times as much.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

SCRIPTS = Path(__file__).parent
LONGEST_SECONDS = 900
"""A script that runs for longer belongs to a test that has failed."""
TAIL_BYTES = 20_000
CONNECT_SECONDS = 30


class Run:
    """One script, in a process group of its own."""

    def __init__(self, environ: dict[str, str], script: str, arguments: list[str]) -> None:
        descriptor, self._output = tempfile.mkstemp()
        self._process = subprocess.Popen(
            [sys.executable, SCRIPTS / script, *arguments],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(descriptor)
        self._ended = threading.Event()
        self._code: int | None = None
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        try:
            code = self._process.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            code = 124
        self._code = None if code == -signal.SIGKILL else code  # stopped: it came to no end
        self._ended.set()

    def result(self, seconds: float) -> dict[str, Any]:
        self._ended.wait(seconds)
        said = Path(self._output).read_bytes()[-TAIL_BYTES:]
        return {"code": self._code, "output": said.decode(errors="replace")}

    def stop(self) -> None:
        """Returns when nothing of it can happen any more."""
        try:
            while True:
                os.killpg(self._process.pid, signal.SIGKILL)
                time.sleep(0.02)
        except ProcessLookupError:
            pass


runs: dict[str, Run] = {}
starting = threading.Lock()


def start(name: str, environ: dict[str, str], script: str, arguments: list[str]) -> None:
    with starting:
        if name not in runs:  # otherwise the answer was lost, not the question
            runs[name] = Run(environ, script, arguments)


def result(name: str, seconds: float) -> dict[str, Any]:
    return runs[name].result(seconds)


def stop(name: str) -> None:
    runs[name].stop()


def connected(dsn: str) -> "psycopg.Connection[Any]":
    """Tried again for a while: until there is a connection nothing was asked, and scenarios let
    servers die."""
    import psycopg  # here, because the scripts' own test has no database

    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return psycopg.connect(dsn, autocommit=True, connect_timeout=10)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def sql(dsn: str, query: str) -> list[list[str]]:
    with connected(dsn) as conn:
        cursor = conn.execute(query.encode())
        rows: list[list[str]] = []
        while True:
            answer = cursor.pgresult
            assert answer is not None
            for row in range(answer.ntuples):
                values = (answer.get_value(row, column) for column in range(answer.nfields))
                rows.append([(value or b"").decode() for value in values])
            if not cursor.nextset():
                return rows


sinks: dict[str, list[dict[str, Any]]] = {}


def received(name: str) -> list[dict[str, Any]]:
    return sinks.get(name, [])


ACTIONS: dict[str, Callable[..., Any]] = {
    "/start": start,
    "/result": result,
    "/stop": stop,
    "/sql": sql,
    "/received": received,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/sink/"):
            headers = {name.lower(): value for name, value in self.headers.items()}
            came = {"headers": headers, "body": body.decode(errors="replace")}
            sinks.setdefault(self.path.removeprefix("/sink/"), []).append(came)
            self._answer(200, b"taken")
            return
        try:
            status, answer = 200, ACTIONS[self.path](**json.loads(body))
        except Exception as error:
            status, answer = 422, f"{type(error).__name__}: {error}"
        self._answer(status, json.dumps(answer).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(port: int) -> None:
    """Until SIGTERM. Port 0 is any free one; the one in use is printed."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = ThreadingHTTPServer(("", port), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
