"""Ours, with its default settings unless given others."""

import sys
from collections.abc import Mapping
from typing import Any, Literal

import psycopg
import yaml

from bench.systems.base import System
from bench.workload import KEY_SQL, NUMBERS_SQL, PAYLOAD_SQL, TENANT_SQL
from outbox_core.store.migrate import migrate

RELAY = "bench"


class Ours(System):
    load_sql = (
        "INSERT INTO outbox.event (event_type, tenant_id, ordering_key, payload)"
        f" SELECT 'bench.happened', {TENANT_SQL}, {KEY_SQL}, {PAYLOAD_SQL} FROM {NUMBERS_SQL}"
    )
    insert_sql = (
        "INSERT INTO outbox.event (event_type, ordering_key, payload)"
        " VALUES ('bench.happened', %(key)s, %(payload)b)"
    )
    table = "outbox.delivery, outbox.batch, outbox.published, outbox.event"

    def __init__(
        self,
        ordering: Literal["None", "Key"] = "None",
        processes: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("ours" if ordering == "None" else "ours, ordered")
        self.ordering = ordering
        self.ordered = ordering == "Key"
        self.processes = processes
        self._settings = dict(settings or {})

    def _set_up(self) -> None:
        migrate(self.site.dsn)
        with psycopg.connect(self.site.dsn, autocommit=True) as conn:
            # Before the load, so that its events match a relay; the same registration as by `run`.
            conn.execute(
                "SELECT outbox.register_relay(%s, '{*}', NULL, %s, %s)",
                (RELAY, self.ordering, self._settings.get("polling", {}).get("notify", False)),
            )

    def _commands(self) -> list[list[str]]:
        secret = self.site.folder / "dsn"
        secret.write_text(self.site.dsn)
        config = self.site.folder / "relay.yaml"
        settings = {
            "name": RELAY,
            "store": {"dsn": {"file": str(secret)}},
            "publisher": self.site.destination.publisher(self.site.name),
            "ordering": self.ordering,
            "http": {"host": "127.0.0.1", "port": 0},
            **self._settings,
        }
        config.write_text(yaml.safe_dump(settings))
        run = [sys.executable, "-m", "outbox_relay.cli.main", "run", "--config", str(config)]
        return [run] * self.processes

    def is_done(self) -> bool:
        # Four probes of small indexes, not a count: the check must not become a part of the cost.
        return bool(
            self._one(
                "SELECT NOT EXISTS (SELECT 1 FROM outbox.delivery WHERE state = 'CLAIMED')"
                " AND NOT EXISTS (SELECT 1 FROM outbox.batch)"
                " AND NOT EXISTS (SELECT 1 FROM outbox.delivery"
                " WHERE state = 'PENDING' AND hold = 'NONE')"
                " AND NOT EXISTS (SELECT 1 FROM outbox.delivery"
                " WHERE state = 'PENDING' AND hold IN ('TIME', 'SUSPECT'))"
            )
        )

    def describe(self) -> Mapping[str, object]:
        return {"ordering": self.ordering, "processes": self.processes, **self._settings}
