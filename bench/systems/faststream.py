"""
faststream-outbox: a poller in asyncio, which deletes what it has published.

It keeps no order. `bench.tuning` has its settings for each kind of work. It is woken by NOTIFY,
which its own publish() sends too, once per transaction.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.destinations.kafka import KafkaTopics
from bench.peers_install import python_of_faststream
from bench.systems.base import System
from bench.workload import KEY_SQL, NUMBERS_SQL, PAYLOAD_SQL

APP = Path(__file__).parent.parent / "apps" / "faststream_relay.py"

Settings = Mapping[str, Mapping[str, float | str]]
"""Of the `subscriber` that fetches and deletes, and of the producer of `kafka`."""


class Faststream(System):
    ordered = False
    drain_limit = 30_000
    load_sql = (
        "INSERT INTO outbox (queue, payload, headers)"
        f" SELECT 'bench', {PAYLOAD_SQL}, jsonb_build_object('key', {KEY_SQL},"
        f" 'correlation_id', gen_random_uuid()) FROM {NUMBERS_SQL}"
    )
    # As its publish() does: the NOTIFY is part of the same statement.
    insert_sql = (
        "INSERT INTO outbox (queue, payload, headers)"
        " VALUES ('bench', %(payload)b, jsonb_build_object('key', %(key)s::text,"
        " 'correlation_id', gen_random_uuid()))"
        " RETURNING id, pg_notify('outbox_outbox', queue)"
    )
    wake_sql = "SELECT pg_notify('outbox_outbox', 'bench')"
    table = "outbox"

    def __init__(self, settings: Settings) -> None:
        super().__init__("faststream")
        self._settings = {name: dict(part) for name, part in settings.items()}

    def _set_up(self) -> None:
        subprocess.run([*self._command("create"), "{}"], check=True)

    def _commands(self) -> list[list[str]]:
        return [[*self._command("run"), json.dumps(self._settings)]]

    def _command(self, verb: str) -> list[str]:
        kafka = self.site.destination
        assert isinstance(kafka, KafkaTopics)
        return [
            *(str(python_of_faststream()), str(APP), verb),
            *(self.site.dsn.replace("postgresql://", "postgresql+asyncpg://"),),
            *(kafka.bootstrap, self.site.name),
        ]

    def is_done(self) -> bool:
        return bool(self._one("SELECT NOT EXISTS (SELECT 1 FROM outbox)"))

    def describe(self) -> Mapping[str, object]:
        return self._settings
