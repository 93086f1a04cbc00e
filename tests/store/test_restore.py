"""A restored backup: the rules are in force, and nothing is delivered again."""

import subprocess

import pytest

from dev.services import Postgres
from dev.services.postgres import find_binaries
from fixtures.outbox import Outbox

pytestmark = pytest.mark.pg

WHOLE = (
    "SELECT e::text FROM outbox.event e ORDER BY seq",
    "SELECT d::text FROM outbox.deliveries d ORDER BY relay_id, seq",
    "SELECT u::text FROM outbox.unmatched u ORDER BY seq",
    "SELECT last_value FROM outbox.event_seq",
    "SELECT tgname, tgenabled FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname",
)


def test_a_dump_of_the_whole_database_is_restored_as_it_was(
    outbox: Outbox, postgres: Postgres
) -> None:
    relay = outbox.register(event_types=["order.*"])
    for n in range(4):
        outbox.emit(ordering_key=f"k{n}", headers={"a": "1"})
    outbox.emit("nobody.wants.it")
    outbox.publish(relay, outbox.claim(relay, limit=2))
    tools = find_binaries()
    dump = subprocess.run(
        [tools / "pg_dump", "--dbname", outbox.dsn], check=True, capture_output=True
    )
    target = postgres.create_database("restored")
    subprocess.run(
        [tools / "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", target],
        check=True,
        input=dump.stdout,
        capture_output=True,
    )
    again = Outbox(target)
    try:
        for query in WHOLE:
            assert again.sql(query) == outbox.sql(query), query
        last = again.emit()
        claims = again.claim(relay)
        assert claims[-1].event_id == str(last)
        assert len(claims) == 3
    finally:
        again.close()
        postgres.drop_database("restored")
