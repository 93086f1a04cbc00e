"""
Debezium Server: change data capture from the write-ahead log, through its own outbox router.

Always ordered, one process per replication slot. Tuned for both throughput and latency: it polls
every 10 ms, and takes up to 8192 changes at once. Its publication and slot are created before the
load, so it never takes a snapshot.
"""

from collections.abc import Mapping

import psycopg

from bench.peers_install import debezium_home, java_of_debezium
from bench.systems.base import System
from bench.workload import KEY_SQL, NUMBERS_SQL, PAYLOAD_SQL
from dev.services.postgres import SUPERUSER

TABLE = """
    CREATE TABLE outbox (
        id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        aggregatetype text NOT NULL,
        aggregateid   text NOT NULL,
        type          text NOT NULL,
        payload       bytea NOT NULL
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
    load_sql = (
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
        f" SELECT 'bench', {KEY_SQL}, 'bench.happened', {PAYLOAD_SQL} FROM {NUMBERS_SQL}"
    )
    insert_sql = (
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
        " VALUES ('bench', %(key)s, 'bench.happened', %(payload)b)"
    )
    table = "outbox"

    def __init__(
        self, settings: Mapping[str, str] | None = None, java: tuple[str, ...] = (f"-Xmx{HEAP}",)
    ) -> None:
        super().__init__("debezium")
        self._settings = TUNED if settings is None else dict(settings)
        self._java_options = java

    def _set_up(self) -> None:
        with psycopg.connect(self.site.dsn, autocommit=True) as conn:
            conn.execute(TABLE)
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
        return [[java, *self._java_options, "-cp", classes, "io.debezium.server.Main"]]

    def _properties(self) -> dict[str, str]:
        source = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.site.postgres.port),
            "database.user": SUPERUSER,
            "database.password": "unused",  # the server trusts any user; Debezium requires one
            "database.dbname": self._database,
            "topic.prefix": "bench",
            "plugin.name": "pgoutput",
            "slot.name": self._database,
            "publication.name": "bench",
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "table.include.list": "public.outbox",
            "offset.storage.file.filename": "offsets.dat",
        }
        router = {
            "type": "io.debezium.transforms.outbox.EventRouter",
            "route.topic.replacement": self.site.topic,
        }
        kafka = {
            "bootstrap.servers": self.site.kafka.bootstrap,
            "acks": "all",
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
        }
        return {
            **{f"debezium.source.{k}": v for k, v in source.items()},
            "debezium.transforms": "outbox",
            **{f"debezium.transforms.outbox.{k}": v for k, v in router.items()},
            "debezium.sink.type": "kafka",
            **{f"debezium.sink.kafka.producer.{k}": v for k, v in kafka.items()},
            "debezium.format.key": "simplestring",
            "debezium.format.value": "binary",  # the payload unchanged, as ours sends it
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": "0",
            "quarkus.log.console.json": "false",
            "quarkus.log.level": "WARN",
            **self._settings,
        }

    @property
    def _database(self) -> str:
        return self.site.topic  # one name for both, see Lab.site

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
