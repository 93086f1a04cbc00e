"""One round of a worker: recorded and claimed in one statement, and what it reads of the tables."""

import pytest

from fixtures.outbox import Holder, Outbox
from outbox_core.model.retry import give_back
from outbox_core.store.deliveries import UNORDERED, Finished, Wanted
from outbox_core.store.tokens import fresh_token

pytestmark = pytest.mark.pg

BOTH = pytest.mark.parametrize("ordering", ["None", "Key"])


def emit_many(outbox: Outbox, count: int) -> None:
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', '', 'k' || i %% 100 FROM generate_series(1, %s) i",
        count,
    )


@BOTH
def test_a_turn_reports_what_was_lost_and_claims_what_is_next(
    outbox: Outbox, ordering: str
) -> None:
    relay = outbox.register(ordering=ordering)
    holder = Holder(outbox, relay) if ordering == "Key" else None
    emit_many(outbox, 4)
    claims = holder.claim() if holder else outbox.claim(relay)
    taken = claims[:2]
    outbox.fail(relay, taken, delay=3600)  # as a reaper does, under the same token
    emit_many(outbox, 3)
    done = Finished(claims[0].token, [c.seq for c in claims], [f"t@{c.seq}" for c in claims], [])
    lanes = holder.lanes if holder else UNORDERED
    wanted = Wanted(fresh_token(), 100, lanes, floor=0, lane_limit=100)
    turn = outbox.deliveries(relay).turn(done, wanted, holder.token if holder else None)
    assert sorted(turn.lost) == [c.seq for c in taken]
    assert {c.token for c in turn.claims} == {wanted.token}
    assert len(turn.claims) == (3 if ordering == "None" else 1)  # two wait behind their keys
    assert outbox.states()["PUBLISHED"] == 2


@BOTH
def test_a_turn_is_one_statement_and_one_transaction(outbox: Outbox, ordering: str) -> None:
    relay = outbox.register(ordering=ordering)
    holder = Holder(outbox, relay) if ordering == "Key" else None
    emit_many(outbox, 2)
    claims = holder.claim() if holder else outbox.claim(relay)
    emit_many(outbox, 2)
    done = Finished(claims[0].token, [c.seq for c in claims], ["r", "r"], [])
    lanes = holder.lanes if holder else UNORDERED
    wanted = Wanted(fresh_token(), 100, lanes, floor=0, lane_limit=100)
    turn = outbox.deliveries(relay).turn(done, wanted, holder.token if holder else None)
    assert [c.seq for c in turn.claims] == [3, 4]
    (published,) = outbox.sql("SELECT xmin::text FROM outbox.published")
    assert outbox.sql("SELECT xmin::text FROM outbox.batch") == [published]


def test_what_failed_is_claimed_again_in_the_same_turn(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 2)
    first, second = outbox.claim(relay)
    done = Finished(first.token, [first.seq], ["r"], [give_back(second)])
    wanted = Wanted(fresh_token(), 100, UNORDERED, floor=0, mark=True)
    turn = outbox.deliveries(relay).turn(done, wanted, None)
    assert [c.seq for c in turn.claims] == [second.seq]
    assert turn.mark is not None
    assert turn.lost == []


def test_a_relay_of_the_previous_version_claims_and_finishes(outbox: Outbox) -> None:
    """Both share the schema during a rollout."""
    relay = outbox.register()
    emit_many(outbox, 3)
    claim = "SELECT * FROM outbox.claim(%s, 'relay', 'old', 7, 100, '1 min', 0, NULL, false, false)"
    claims = outbox.sql(claim, relay)
    assert [row[0] for row in claims] == [1, 2, 3]
    finish = "SELECT * FROM outbox.finish_published(%s, %s, '{1,2,3}', '{a,b,c}')"
    assert outbox.sql(finish, relay, 8) == [(1,), (2,), (3,)]
    assert outbox.sql(finish, relay, 7) == []
    assert outbox.states() == {"PUBLISHED": 3}


TURN = "outbox.turn(%s, 'relay', 'me', 7, 100, '1 min', 0, NULL, false, false"
STATEMENTS = {
    "claim": f"SELECT * FROM {TURN})",
    "turn": f"SELECT * FROM {TURN}, ended => 7, published => '{{9}}', results => '{{r}}')",
    "finish": "SELECT * FROM outbox.finish_published(%s, 7, '{9}', '{r}')",
    "fail": "SELECT * FROM outbox.finish_failed(%s, '{9}', '{7}', '{PENDING}', '{TIME}', '{60}',"
    " '{f}', '{f}', '{NULL}')",
    "renew": "SELECT outbox.renew(%s, 7, '{9}', '1 min')",
    "release": "SELECT outbox.release_behind(%s, '{9}')",
}


def publish_many(outbox: Outbox, relay: int, count: int) -> None:
    """Over a connection of its own."""
    emit_many(outbox, count)
    with outbox.connect(autocommit=True) as other:
        deliveries = outbox.deliveries(relay, conn=other)
        done = None
        while claims := deliveries.turn(
            done, Wanted(fresh_token(), 1_000, UNORDERED, floor=0), None
        ).claims:
            results = [f"t@{c.seq}" for c in claims]
            done = Finished(claims[0].token, [c.seq for c in claims], results, [])


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("events", [0, 30])
def test_a_plan_of_a_small_table_does_not_read_what_was_published_since(
    outbox: Outbox, name: str, events: int
) -> None:
    """A plan stays in use for as long as the connection, or until the table is analysed."""
    relay = outbox.register()
    publish_many(outbox, relay, events)
    outbox.sql(STATEMENTS[name], relay)
    publish_many(outbox, relay, 3_000)
    with outbox.conn.transaction():
        before = pages_read(outbox)
        outbox.sql(STATEMENTS[name], relay)
        assert pages_read(outbox) - before < 60


def pages_read(outbox: Outbox) -> int:
    """By this connection, of our tables and their indexes. Not the pages of EXPLAIN, which counts
    the catalogue's too: a server that cleans up or analyses meanwhile makes each plan anew."""
    return int(
        outbox.value(
            "SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) FROM pg_class"
            " WHERE relnamespace = 'outbox'::regnamespace"
        )
    )
