"""
The quickest try, without Kubernetes: PostgreSQL, Kafka, one relay, and an event seen arriving.

    make try

The servers are throwaway ones: they keep their data in a temporary folder, and are gone when this
ends (Ctrl-C). Until then they can be used from another terminal; how is printed.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dev.services import Kafka, Postgres, scratch
from dev.services.process import accepts, free_port

HERE = Path(__file__).resolve().parent
TOPIC = "orders"
RELAY = Path(sys.executable).with_name("outbox-relay")
ARRIVAL_SECONDS = 30


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="end when the first event has arrived")
    once = parser.parse_args().once
    with scratch() as folder:
        postgres, kafka = Postgres(folder / "postgres"), Kafka(folder / "kafka")
        postgres.port, kafka.port = usual_or_free(5432), usual_or_free(9092)
        show(f"starting PostgreSQL on port {postgres.port} and Kafka on port {kafka.port}")
        with postgres, kafka:
            create_topic(kafka.bootstrap)
            environment = {**os.environ, "OUTBOX_DSN": postgres.dsn()}
            migrate(environment)
            show("created the schema: outbox-relay migrate")
            config = folder / "relay.yaml"
            config.write_text(relay_settings(kafka.bootstrap))
            with running_relay(config, folder / "relay.log", environment):
                show(f"started a relay: outbox-relay run --config {config}")
                emit(postgres.dsn())
                show("committed an order together with its event: examples/emit.sql")
                watch(kafka.bootstrap, once, invitation(postgres.dsn(), kafka.bootstrap))


def usual_or_free(port: int) -> int:
    return free_port() if accepts(port) else port


def show(text: str) -> None:
    print(f"{time.monotonic() - STARTED:5.1f} s  {text}", flush=True)


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(TOPIC, 6, 1)]).values():
        created.result()


def migrate(environment: dict[str, str]) -> None:
    done = subprocess.run([RELAY, "migrate"], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"outbox-relay migrate failed: {done.stderr or done.stdout}")


def relay_settings(bootstrap: str) -> str:
    settings = (HERE / "relay.yaml").read_text()
    return settings.replace("127.0.0.1:9092", bootstrap).replace("port: 8080", "port: 0")


@contextmanager
def running_relay(config: Path, log: Path, environment: dict[str, str]) -> Iterator[None]:
    with log.open("w") as out:
        relay = subprocess.Popen(
            [RELAY, "run", "--config", config], env=environment, stdout=out, stderr=out
        )
    try:
        yield
    except TimeoutError as error:
        raise SystemExit(f"{error}; the relay's log:\n{log.read_text()}") from None
    finally:
        relay.terminate()
        relay.wait()


def emit(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute((HERE / "emit.sql").read_bytes())


def watch(bootstrap: str, once: bool, invitation: str) -> None:
    """Print what arrives in Kafka, until Ctrl-C; at least one event has to."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "quickstart", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + ARRIVAL_SECONDS
    arrived = 0
    try:
        while not (once and arrived):
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                show(f"arrived in Kafka: {describe(message)}")
                arrived += 1
                if arrived == 1 and not once:
                    print(invitation, flush=True)
            elif not arrived and time.monotonic() > deadline:
                raise TimeoutError(f"no event arrived within {ARRIVAL_SECONDS} s")
    finally:
        consumer.close()


def describe(message: Message) -> str:
    key, value = message.key(), message.value()
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    place = f"{message.topic()}[{message.partition()}]@{message.offset()}"
    return f"{place}  key {key.decode()}  {value.decode()}"


def invitation(dsn: str, bootstrap: str) -> str:
    return f"""
Everything keeps running until Ctrl-C. In another terminal:

    export PATH={shlex.quote(str(RELAY.parent))}:$PATH OUTBOX_DSN={dsn} KAFKA={bootstrap}
    psql "$OUTBOX_DSN" -f examples/emit.sql    # another order: it arrives here
    outbox-relay list                          # what became of each event
    python examples/dedup_consumer.py          # a consumer on which every event takes effect once
    outbox-relay replay EVENT_ID --reason 'try it'    # once more: the consumer ignores it
"""


if __name__ == "__main__":
    STARTED = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        main()
