"""
Debezium as most people run it: its connector for PostgreSQL in Kafka Connect, here in one process.

Any number of connectors, each with settings of its own, share that process: its start is what
costs. They read from where their replication slots begin, so what is written before they are ready
is not lost.
"""

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dev.services.kafka import HERE as KAFKA
from dev.services.kafka import QUICK_START, Kafka, find_java, find_libs
from dev.services.postgres import SUPERUSER, Postgres
from dev.services.process import Server, ServerError, accepts, free_port

HEAP: Final = "512m"
STRING_CONVERTER: Final = "org.apache.kafka.connect.storage.StringConverter"


class Connector(NamedTuple):
    """One connector, with its outbox event router."""

    database: str
    table: str
    """Whose changes it reads, with its schema."""
    router: Mapping[str, str]
    settings: Mapping[str, str]
    """Of the connector and its converters."""

    def statements(self, name: str) -> tuple[str, str]:
        """What a superuser does first: from then on, no change of the table is missed."""
        return (
            f"CREATE PUBLICATION {name} FOR TABLE {self.table}",
            f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
        )


class Debezium(Server):
    """`postgres` must have been started with `wal_level: logical`."""

    def __init__(
        self, folder: Path, postgres: Postgres, kafka: Kafka, connectors: Mapping[str, Connector]
    ) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._postgres = postgres
        self._kafka = kafka
        self._connectors = connectors
        self._libs = find_libs("debezium-connect")
        self._java = find_java()

    def _prepare(self) -> None:
        worker = {
            "bootstrap.servers": self._kafka.bootstrap,
            "listeners": f"http://127.0.0.1:{self.port}",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "plugin.discovery": "service_load",  # instead of opening every class of every jar
            "key.converter": STRING_CONVERTER,
            "value.converter": STRING_CONVERTER,
        }
        self._write("worker", worker)
        for name, connector in self._connectors.items():
            self._write(name, self._properties(name, connector))

    def _properties(self, name: str, connector: Connector) -> dict[str, str]:
        return {
            "name": name,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": "127.0.0.1",
            "database.port": str(self._postgres.port),
            "database.user": SUPERUSER,
            "database.password": "unused",  # the server trusts any user; Debezium requires one
            "database.dbname": connector.database,
            "topic.prefix": name,
            "plugin.name": "pgoutput",
            "slot.name": name,
            "publication.name": name,
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "table.include.list": connector.table,
            "poll.interval.ms": "20",
            **connector.settings,
            "transforms": "outbox",
            "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            **{f"transforms.outbox.{option}": v for option, v in connector.router.items()},
        }

    def _write(self, name: str, properties: Mapping[str, str]) -> None:
        lines = (f"{key}={value}\n" for key, value in properties.items())
        self._file(name).write_text("".join(lines))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.properties"

    def _command(self) -> list[str]:
        return [
            *(self._java, f"-Xmx{HEAP}", *QUICK_START, "-Djava.awt.headless=true"),
            *(f"-Dlog4j2.configurationFile={KAFKA / 'log4j2.properties'}", "-cp"),
            *(f"{self._libs}/*", "org.apache.kafka.connect.cli.ConnectStandalone"),
            *(str(self._file(name)) for name in ("worker", *self._connectors)),
        ]

    def _is_ready(self) -> bool:
        """Whether every connector is at work; one that failed ends the wait."""
        if not accepts(self.port):
            return False
        url = f"http://127.0.0.1:{self.port}/connectors?expand=status"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)
        except OSError:  # it listens before it knows its own paths: 404
            return False
        tasks = [task for known in found.values() for task in known["status"]["tasks"]]
        if failed := [task["trace"] for task in tasks if task["state"] == "FAILED"]:
            raise ServerError(f"a connector failed:\n{failed[0]}")
        return [task["state"] for task in tasks] == ["RUNNING"] * len(self._connectors)
