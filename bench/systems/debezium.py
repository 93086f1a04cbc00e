"""
Debezium Server: change data capture from the write-ahead log, through its own outbox router.

Always ordered, one process per replication slot. Tuned for both throughput and latency: it polls
every 10 ms, and takes up to 8192 changes at once; how its sink is tuned is in `destinations`. Its
publication and slot are created before the load, so it never takes a snapshot.
"""

from collections.abc import Mapping

import psycopg

from bench.destinations.base import Sink
from bench.peers_install import debezium_home, java_of_debezium
from bench.systems.base import System
from bench.workload import KEY_SQL, NUMBERS_SQL, PAYLOAD_SQL, TEXT_SQL
from dev.services.postgres import SUPERUSER

TABLE = """
    CREATE TABLE outbox (
        id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        aggregatetype text NOT NULL,
        aggregateid   text NOT NULL,
        type          text NOT NULL,
        payload       {type} NOT NULL
    )
"""

TUNED = {
    "debezium.source.poll.interval.ms": "10",
    "debezium.source.max.batch.size": "8192",
    "debezium.source.max.queue.size": "32768",
}

HEAP = "1g"


class Debezium(System):
    flavour = "logical"
    ordered = True
    table = "outbox"

    def __init__(
        self, settings: Mapping[str, str] | None = None, java: tuple[str, ...] = (f"-Xmx{HEAP}",)
    ) -> None:
        super().__init__("debezium")
        self._settings = TUNED if settings is None else dict(settings)
        self._java_options = java

    @property
    def _sink(self) -> Sink:
        return self.site.destination.sink(self.site.name)

    def _set_up(self) -> None:
        text = self._sink.text
        into = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
        payload = TEXT_SQL if text else PAYLOAD_SQL
        self.load_sql = (
            f"{into} SELECT 'bench', {KEY_SQL}, 'bench.happened', {payload} FROM {NUMBERS_SQL}"
        )
        payload = "convert_from(%(payload)b, 'UTF8')" if text else "%(payload)b"
        self.insert_sql = f"{into} VALUES ('bench', %(key)s, 'bench.happened', {payload})"
        with psycopg.connect(self.site.dsn, autocommit=True) as conn:
            conn.execute(TABLE.format(type="text" if text else "bytea"))
            conn.execute("CREATE PUBLICATION bench FOR TABLE outbox")
            # A slot belongs to the whole server: named after the database, which is new each time.
            conn.execute(
                "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')"
            )

    def _commands(self) -> list[list[str]]:
        folder = self.site.folder / f"{self.name}-0"
        (folder / "config").mkdir(parents=True)  # where it looks for it, in its working folder
        lines = (f"{name}={value}\n" for name, value in self._properties().items())
        (folder / "config" / "application.properties").write_text("".join(lines))
        home = debezium_home()
        runner = next(home.glob("debezium-server-*runner.jar"))
        classes = f"{runner}:{home}/config/lib:{home}/lib/*"
        java = str(java_of_debezium())
        options = (*self._java_options, *self._sink.java)
        return [[java, *options, "-cp", classes, "io.debezium.server.Main"]]

    def _properties(self) -> dict[str, str]:
        source = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.site.postgres.port),
            "database.user": SUPERUSER,
            "database.password": "unused",  # the server trusts any user; Debezium requires one
            "database.dbname": self.site.name,
            "topic.prefix": "bench",
            "plugin.name": "pgoutput",
            "slot.name": self.site.name,
            "publication.name": "bench",
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "table.include.list": "public.outbox",
            "offset.storage.file.filename": "offsets.dat",
        }
        router = {
            "type": "io.debezium.transforms.outbox.EventRouter",
            "route.topic.replacement": self.site.name,
        }
        sink = self._sink
        return {
            **{f"debezium.source.{k}": v for k, v in source.items()},
            "debezium.transforms": "outbox",
            **{f"debezium.transforms.outbox.{k}": v for k, v in router.items()},
            "debezium.sink.type": sink.type,
            **{f"debezium.sink.{sink.type}.{k}": v for k, v in sink.settings.items()},
            "debezium.format.key": "simplestring",
            # The payload unchanged, as ours sends it.
            "debezium.format.value": "simplestring" if sink.text else "binary",
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": "0",
            "quarkus.log.console.json": "false",
            "quarkus.log.level": "WARN",
            **self._settings,
        }

    def is_done(self) -> bool:
        return True  # it keeps no state per event

    def stop(self) -> None:
        super().stop()
        # A slot keeps its database, and all the log since then, from being deleted.
        self._one(
            "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots"
            " WHERE database = current_database() AND NOT active"
        )

    def describe(self) -> Mapping[str, object]:
        return {"java": list(self._java_options), **self._settings}
