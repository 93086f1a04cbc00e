"""
Format Debezium beside Debezium itself: the same events through its outbox event router, from its
own outbox table, and through a relay, into the same topics. A consumer cannot tell which message is
whose.

The relay goes first and Debezium afterwards, so a message's offset says who sent it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from dev.services import Kafka, Postgres, scratch, wait_until
from dev.services.debezium import STRING_CONVERTER, Connector, Debezium
from fixtures.relays import LocalRelay, local_settings
from fixtures.topics import Consume, MakeTopic, Message
from outbox_core.store.migrate import migrate

pytestmark = pytest.mark.kafka

DATABASE: Final = "shop"
TABLE: Final = """
    CREATE TABLE {table} (
        id            uuid PRIMARY KEY,
        aggregatetype varchar(255) NOT NULL,
        aggregateid   varchar(255),  -- NOT NULL in Debezium's documentation, and nothing demands it
        type          varchar(255) NOT NULL,
        payload       {column}
    )
"""
PLAIN: Final = {
    "value.converter": STRING_CONVERTER,
    # Else every record also says which process of Debezium has read it, and when that was started.
    "extended.headers.enabled": "false",
}
BYTES: Final = {
    **PLAIN,
    "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
}
JSON: Final = {
    **PLAIN,
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
OWN_COLUMNS: Final = {
    "table.field.event.id": "event_id",
    "table.field.event.key": "aggregate_id",
    "route.by.field": "aggregate_type",
}


class Given(NamedTuple):
    """An event's aggregate and payload."""

    aggregate_id: str | None
    payload: str | bytes


class Layout(NamedTuple):
    """A way to keep payloads in Debezium's table, with the settings that send them as they are."""

    column: str
    emitted: str
    """What `outbox.emit` is given the same payload as."""
    settings: Mapping[str, str]
    events: Sequence[Given]
    router: Mapping[str, str] = {}


ODD_JSON: Final = (
    Given(
        "42", '{"b": 1,  "aa":[1,2.50,1e3,12345678901234567890, null,true], "b2":{"x":"ü\\n\\/"}}'
    ),
    Given("42", '"a string"'),
    Given("7", "[]"),
    Given("7", "null"),
    Given("ü€😀", '{"emoji": "😀", "escaped": "\\ud83d\\ude00"}'),
    Given(" key ", '{"blank": " \\t"}'),
    Given("", '{"key": "is empty"}'),
    Given("k" * 255, json.dumps({"large": "x" * 900_000})),
    Given(None, '{"key": null}'),
)
LAYOUTS: Final = {
    "Bytes": Layout(
        "bytea",
        "bytea",
        BYTES,
        (
            Given("42", b'{"b": 1,  "a":[1,2.50] }\n'),
            Given("42", b"\x00\xff\xfe not UTF-8 \x00"),
            Given("empty", b""),
            Given("ü€😀", "ü€😀".encode()),
            Given("", b"the key is empty"),
            Given("large", bytes(range(256)) * 3600),
            Given(None, b"no key"),
        ),
    ),
    "Text": Layout(
        "text",
        "text",
        PLAIN,
        (*ODD_JSON, Given("empty", ""), Given("1", "no JSON: ü€😀\t\r\n"), Given("2", " ")),
    ),
    "Json": Layout("json", "text", PLAIN, ODD_JSON),
    "Jsonb": Layout("jsonb", "jsonb", PLAIN, ODD_JSON),
    "Expanded": Layout(
        "json",
        "text",
        JSON,
        (
            Given("1", '{"id":1042,"who":"Grüße","paid":true,"total":12.5,"to":{"zip":"012"}}'),
            Given("2", '{"items":[{"sku":"a","n":1},{"sku":"b","n":2}],"tags":["x","y"]}'),
        ),
        {"table.expand.json.payload": "true"},
    ),
}
"""By aggregate type, which names the topic."""

CAPTURED, OTHERWISE = "captured", "otherwise"
"""Topics of connectors that send everything to one."""

THEIR_TABLES: Final = {name: f"public.outbox_{name.lower()}" for name in LAYOUTS}
CONNECTORS: Final = {
    **{
        name.lower(): Connector(DATABASE, THEIR_TABLES[name], layout.router, layout.settings)
        for name, layout in LAYOUTS.items()
    },
    CAPTURED: Connector(
        DATABASE, "outbox.event", {**OWN_COLUMNS, "route.topic.replacement": CAPTURED}, BYTES
    ),
    OTHERWISE: Connector(
        DATABASE,
        THEIR_TABLES["Text"],
        {
            "route.topic.replacement": OTHERWISE,
            "route.tombstone.on.empty.payload": "true",
            "table.fields.additional.placement": "type:header:eventType,aggregatetype:header",
        },
        {**JSON, "extended.headers.enabled": "true"},
    ),
}


class Sent(NamedTuple):
    """All that a consumer sees of a message, but for its place and time."""

    topic: str
    partition: int | None
    """None where it has no key: then the sender may choose any."""
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass
class Both:
    """What arrived, by the event's id."""

    relay: dict[str, Sent] = field(default_factory=dict)
    debezium: dict[str, Sent] = field(default_factory=dict)
    captured: dict[str, Sent] = field(default_factory=dict)
    otherwise: dict[str, Sent] = field(default_factory=dict)
    payloads: dict[str, str | bytes] = field(default_factory=dict)

    def of(self, layout: str) -> tuple[dict[str, Sent], dict[str, Sent]]:
        topic = topic_of(layout)
        ours, theirs = (
            {id: sent for id, sent in side.items() if sent.topic == topic}
            for side in (self.relay, self.debezium)
        )
        return ours, theirs


def topic_of(layout: str) -> str:
    return f"outbox.event.{layout}"  # as Debezium calls it by its defaults


@pytest.fixture(scope="module")
def both(kafka: Kafka, make_topic: MakeTopic, consume: Consume) -> Both:
    found = Both()
    n_events = sum(len(layout.events) for layout in LAYOUTS.values())
    n_text = len(LAYOUTS["Text"].events)
    for topic in (*map(topic_of, LAYOUTS), CAPTURED, OTHERWISE):
        make_topic(name=topic)
    with (
        scratch(in_memory=True) as folder,
        Postgres(folder / "postgres", {"wal_level": "logical"}) as postgres,
    ):
        dsn = postgres.create_database(DATABASE)
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            for name, table in THEIR_TABLES.items():
                conn.execute(TABLE.format(table=table, column=LAYOUTS[name].column))
            for name, connector in CONNECTORS.items():
                for statement in connector.statements(name):
                    conn.execute(statement)
            conn.execute("SELECT outbox.register_relay('relay', '{*}', NULL, 'None')")
            for name, layout in LAYOUTS.items():
                for given in layout.events:
                    found.payloads[write(conn, name, layout, given)] = given.payload
            relay_all(conn, dsn, kafka)
        ours = {topic: consume(topic, 0) for topic in map(topic_of, LAYOUTS)}
        found.relay = by_id([message for messages in ours.values() for message in messages])
        with Debezium(folder / "debezium", postgres, kafka, CONNECTORS):
            for name, layout in LAYOUTS.items():
                mine = {(m.partition, m.offset) for m in ours[topic_of(name)]}
                everything = consume(topic_of(name), len(mine) + len(layout.events))
                found.debezium |= by_id(
                    [m for m in everything if (m.partition, m.offset) not in mine]
                )
            found.captured = by_id(consume(CAPTURED, n_events))
            found.otherwise = by_id(consume(OTHERWISE, n_text))
    return found


def write(conn: psycopg.Connection[Any], name: str, layout: Layout, given: Given) -> str:
    """Into both outboxes, with the same id."""
    id = str(uuid4())
    values = {"id": id, "name": name, "aggregate": given.aggregate_id, "payload": given.payload}
    conn.execute(
        f"INSERT INTO {THEIR_TABLES[name]}"
        " VALUES (%(id)s, %(name)s, %(aggregate)s, 'order.created', "
        f"%(payload)s::{layout.column})",
        values,
    )
    conn.execute(
        f"SELECT outbox.emit('order.created', %(payload)s::{layout.emitted}, event_id => %(id)s,"
        " aggregate_type => %(name)s, aggregate_id => %(aggregate)s,"
        # None of these is for Debezium's consumers.
        " partition_key => 'p', content_type => 'text/x-test', headers => '{\"region\": \"eu\"}')",
        values,
    )
    return id


def relay_all(conn: psycopg.Connection[Any], dsn: str, kafka: Kafka) -> None:
    publisher = {
        "bootstrapServers": kafka.bootstrap,
        "topic": "outbox.event.{aggregate_type}",
        "format": "Debezium",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTBOX_BESIDE_DSN", dsn)
        settings = local_settings(
            "OUTBOX_BESIDE_DSN", "pod-1", "relay", publisher={"kafka": publisher}, lease="1m"
        )
        relay = LocalRelay(settings, None)
        try:
            wait_until(
                lambda: (
                    not conn.execute(
                        "SELECT FROM outbox.deliveries WHERE state IN ('PENDING', 'CLAIMED')"
                    ).fetchall()
                ),
                60,
                "end of the relay's work",
            )
        finally:
            relay.stop()
    dead = conn.execute("SELECT last_error FROM outbox.deliveries WHERE state = 'DEAD'").fetchall()
    assert dead == []


def by_id(messages: Sequence[Message]) -> dict[str, Sent]:
    found: dict[str, Sent] = {}
    for m in messages:
        (id,) = (value for name, value in m.headers if name == "id")
        assert id is not None
        assert id.decode() not in found, "sent twice"
        partition = None if m.key is None else m.partition
        found[id.decode()] = Sent(m.topic, partition, m.key, m.value, m.headers)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_topic_partition_key_value_and_headers_equal_those_of_debezium(
    layout: str, both: Both
) -> None:
    ours, theirs = both.of(layout)
    assert len(theirs) == len(LAYOUTS[layout].events)
    assert ours == theirs


def test_ek_16_debezium_reads_the_relays_own_table_with_one_message_for_each_event(
    both: Both,
) -> None:
    """Also while deliveries change, which are another table: so both can run until a move from one
    to the other is done."""
    assert both.captured == {id: m._replace(topic=CAPTURED) for id, m in both.relay.items()}


def test_other_settings_of_debezium_make_other_messages(both: Both) -> None:
    """What docs/delivery.md says that format Debezium is not: so that it stays true."""
    ours, _ = both.of("Text")
    assert ours.keys() == both.otherwise.keys()
    for id, sent in both.otherwise.items():
        payload = both.payloads[id]
        assert isinstance(payload, str)
        # An empty or blank payload became a tombstone, and every other one a string in quotes.
        value = None if sent.value is None else json.loads(sent.value)
        assert value == (payload if payload.strip() else None)
        *context, first, second, third = sent.headers
        assert [name.rpartition(".")[0] for name, _ in context] == ["__debezium.context"] * 4
        assert first == ("id", id.encode())
        assert (second, third) == (("eventType", b"order.created"), ("aggregatetype", b"Text"))
        assert sent.key == ours[id].key
