"""
A system of record that takes proposed changes over HTTP, each once.

    python examples/sor_service/service.py 8080 records.sqlite

PUT /{entity_type}/{entity_id} merges `change` into the record. A change is known by its
`source_id`: one that comes again is acknowledged and changes nothing, and another change under the
same id is refused. GET /changes/{source_id} shows if it was taken, for the relay's `check.url`.
The relay's side is relay.yaml beside this file.
"""

import hashlib
import json
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TABLES = """
    CREATE TABLE IF NOT EXISTS record
        (tenant TEXT, entity TEXT, data TEXT NOT NULL, PRIMARY KEY (tenant, entity));
    CREATE TABLE IF NOT EXISTS change
        (source_id TEXT PRIMARY KEY, source_hash TEXT NOT NULL, entity TEXT NOT NULL);
"""


class Refusal(Exception):
    """Status and reason."""


class Records:
    """One connection for each request; SQLite lets one of them write at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        conn = self._connect()
        conn.executescript(TABLES)
        conn.close()

    def take(self, tenant: str, entity: str, proposal: dict[str, Any]) -> str:
        """`applied`, or `already applied`; record and change in one transaction."""
        change = proposal["change"]
        text = json.dumps(change, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        if hashlib.sha256(text.encode()).hexdigest() != proposal["source_hash"]:
            raise Refusal(422, "source_hash is not that of the change")
        conn = self._connect()
        try:
            conn.execute("BEGIN IMMEDIATE")  # so that a copy waits for the first one's end
            known = conn.execute(
                "SELECT source_hash FROM change WHERE source_id = ?", (proposal["source_id"],)
            ).fetchone()
            if known is not None:
                if known[0] != proposal["source_hash"]:
                    raise Refusal(422, "source_id has brought another change already")
                return "already applied"
            row = conn.execute(
                "SELECT data FROM record WHERE tenant = ? AND entity = ?", (tenant, entity)
            ).fetchone()
            data = {**(json.loads(row[0]) if row else {}), **change}
            conn.execute(
                "INSERT OR REPLACE INTO record VALUES (?, ?, ?)", (tenant, entity, json.dumps(data))
            )
            conn.execute(
                "INSERT INTO change VALUES (?, ?, ?)",
                (proposal["source_id"], proposal["source_hash"], entity),
            )
            conn.commit()
            return "applied"
        finally:
            conn.close()

    def knows(self, source_id: str) -> bool:
        conn = self._connect()
        try:
            found = conn.execute("SELECT 1 FROM change WHERE source_id = ?", (source_id,))
            return found.fetchone() is not None
        finally:
            conn.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10, isolation_level=None)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    records: Records

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            proposal = json.loads(body)
            tenant = self.headers.get("x-tenant-id") or ""
            self._answer(200, self.records.take(tenant, self.path, proposal))
        except Refusal as refusal:
            self._answer(*refusal.args)
        except (ValueError, KeyError, TypeError) as error:
            self._answer(400, f"no proposal: {error!r}")

    do_PATCH = do_PUT

    def do_GET(self) -> None:
        known = self.records.knows(unquote(self.path.removeprefix("/changes/")))
        self._answer(200 if known else 404, "known" if known else "unknown")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def make_server(port: int, path: str) -> ThreadingHTTPServer:
    handler = type("BoundHandler", (Handler,), {"records": Records(path)})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


if __name__ == "__main__":
    make_server(int(sys.argv[1]), sys.argv[2]).serve_forever()
