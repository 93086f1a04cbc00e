"""
What a process does not hear of, and what moves while it looks: the statements stay right.

With real relays, and at every statement: tests/chaos.
"""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from dev.services import wait_until
from fixtures.outbox import Holder, Outbox
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold
from outbox_core.model.retry import give_back
from outbox_core.store.deliveries import UNORDERED, Deliveries, Finished, Wanted
from outbox_core.store.tokens import fresh_token

pytestmark = pytest.mark.pg


def emit_many(outbox: Outbox, count: int, keys: int = 0) -> None:
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', '', CASE WHEN %s > 0 THEN 'k' || i %% greatest(%s, 1) END"
        " FROM generate_series(1, %s) i ORDER BY i",
        keys,
        keys,
        count,
    )


def waiting_for_a_lock(outbox: Outbox) -> bool:
    return bool(outbox.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))


# A renewal beside a finalisation -------------------------------------------------------------


def beside_a_renewal(
    outbox: Outbox, claims: list[Claim], act: Callable[[], list[int]]
) -> list[int]:
    """While the keeper's renewal of these claims is being committed, a worker finalises them."""
    lost: list[int] = []
    with outbox.connect() as keeper:
        renewing = outbox.deliveries(1, lease=timedelta(minutes=2), conn=keeper)
        assert renewing.renew(claims[0].token, [c.seq for c in claims]) == len(claims)
        worker = threading.Thread(target=lambda: lost.extend(act()))
        worker.start()
        with outbox.connect(autocommit=True) as other:
            wait_until(
                lambda: other.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone(),
                10,
                "the worker waits for the keeper",
            )
        keeper.commit()
        worker.join(10)
    return lost


def test_what_is_renewed_while_it_is_finalised_is_published(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 300)
    claims = outbox.claim(relay, 300)
    assert beside_a_renewal(outbox, claims, lambda: outbox.publish(relay, claims)) == []
    assert outbox.states() == {"PUBLISHED": 300}


def test_what_is_renewed_while_it_fails_is_given_back(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 300)
    claims = outbox.claim(relay, 300)
    assert beside_a_renewal(outbox, claims, lambda: outbox.fail(relay, claims)) == []
    assert outbox.states() == {"PENDING": 300}


def test_what_was_finalised_meanwhile_is_not_renewed(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 3)
    claims = outbox.claim(relay)
    outbox.publish(relay, claims[:2])
    assert outbox.deliveries(relay).renew(claims[0].token, [c.seq for c in claims]) == 1


# A claim that nobody answered -----------------------------------------------------------------


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_what_was_given_back_and_claimed_again_in_a_lost_turn_is_recovered(
    outbox: Outbox, ordering: str
) -> None:
    """One transaction published the first, gave the others back and claimed them again."""
    relay = outbox.register(ordering=ordering)
    holder = Holder(outbox, relay) if ordering == "Key" else None
    emit_many(outbox, 10, keys=1)
    claims = holder.claim() if holder else outbox.claim(relay)
    first, rest = claims[0], claims[1:]
    done = Finished(first.token, [first.seq], ["t[0]@1"], [give_back(c) for c in rest])
    lanes = holder.lanes if holder else UNORDERED
    wanted = Wanted(fresh_token(), 100, lanes, floor=0, lane_limit=100)
    deliveries = outbox.deliveries(relay)
    turn = deliveries.turn(done, wanted, holder.token if holder else None)
    assert [c.seq for c in turn.claims] == [c.seq for c in rest]  # and nobody hears of it
    assert deliveries.recover(wanted.token) == 9
    assert outbox.states() == {"PENDING": 9, "PUBLISHED": 1}
    # The turn is tried again, since it was not answered: nothing is lost, and nothing twice.
    again = deliveries.turn(done._replace(again=True), None, None)
    assert again.lost == []
    assert {r["attempts_in_budget"] for r in outbox.events("state = 'PENDING'")} == {0}


def test_a_token_of_somebody_else_is_not_recovered(outbox: Outbox) -> None:
    relay = outbox.register()
    emit_many(outbox, 5)
    outbox.claim(relay)
    assert outbox.deliveries(relay).recover(fresh_token()) == 0
    assert outbox.states() == {"CLAIMED": 5}


def test_joining_twice_with_one_token_is_joining_once(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    holder.lanes_of_relay.join(holder.token)
    assert outbox.value("SELECT count(*) FROM outbox.holder") == 1
    assert holder.lanes_of_relay.seen(holder.token).held == holder.lanes


def test_a_fence_whose_answer_was_lost_can_be_asked_for_again(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    fresh = fresh_token()
    assert holder.lanes_of_relay.fence(holder.token, fresh)
    assert holder.lanes_of_relay.fence(holder.token, fresh)
    assert holder.lanes_of_relay.seen(fresh).held == holder.lanes


def test_lanes_that_a_lost_statement_takes_under_the_old_token_are_fenced_too(
    outbox: Outbox,
) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay, lanes=10)
    lost = holder.conn
    lost.execute("BEGIN")
    late = holder.lanes_of_relay.acquire(holder.token, 5)
    holder.reconnect()
    fresh = fresh_token()
    fenced: list[bool] = []
    fencing = threading.Thread(
        target=lambda: fenced.append(holder.lanes_of_relay.fence(holder.token, fresh))
    )
    fencing.start()
    wait_until(lambda: waiting_for_a_lock(outbox), 10, "the fence waits for the lost statement")
    lost.execute("COMMIT")
    fencing.join(10)
    assert fenced == [True]
    assert holder.lanes_of_relay.seen(fresh).held == sorted([*holder.lanes, *late])


def test_a_claim_does_not_keep_its_process_from_renewing_its_lanes(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    emit_many(outbox, 10, keys=3)
    holder = Holder(outbox, relay)
    holder.conn.execute("BEGIN")
    assert holder.claim()
    with outbox.connect(autocommit=True) as keeper:
        keeper.execute("SET lock_timeout = '1s'")
        keeper.execute("UPDATE outbox.holder SET expires_at = now() + interval '1 min'")
    holder.conn.execute("COMMIT")


def test_lanes_whose_holder_is_gone_are_free_again(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    gone, here = Holder(outbox, relay, lanes=20), Holder(outbox, relay, lanes=20, owner="pod-2")
    outbox.sql("DELETE FROM outbox.holder WHERE token = %s", gone.token)
    assert outbox.deliveries(relay).chores(True).expired_holders
    assert here.lanes_of_relay.free_orphans() == 20
    assert here.lanes_of_relay.seen(here.token).held == here.lanes
    assert not outbox.deliveries(relay).chores(True).expired_holders


# Another server ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_a_floor_of_another_server_does_not_count(outbox: Outbox, ordering: str) -> None:
    relay = outbox.register(ordering=ordering)
    holder = Holder(outbox, relay) if ordering == "Key" else None
    emit_many(outbox, 10, keys=3)
    (before,) = outbox.sql(
        "SELECT pg_postmaster_start_time(), pg_postmaster_start_time() - '1s'::interval"
    )
    found = []
    for server in before:
        wanted = Wanted(
            fresh_token(), 100, holder.lanes if holder else UNORDERED, floor=8, server=server,
            lane_limit=100,
        )  # fmt: skip
        turn = outbox.deliveries(relay).turn(None, wanted, holder.token if holder else None)
        found.append(sorted(c.seq for c in turn.claims))
    assert found == [[9, 10], [1, 2, 3, 4, 5, 6, 7, 8]]


# Keys ---------------------------------------------------------------------------------------------


def suspects(outbox: Outbox, relay: int, claims: list[Claim]) -> None:
    """They come back as after a crash."""
    outbox.fail(relay, claims, hold=Hold.SUSPECT, refund=True)
    outbox.sql("UPDATE outbox.delivery SET crashes = 1 WHERE hold = 'SUSPECT'")


def test_suspects_behind_a_blocked_key_leave_room_for_those_of_other_keys(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 120, keys=1)
    blocked = holder.claim()
    emit_many(outbox, 200, keys=20)
    others = [c for c in holder.claim() if c.ordering_key != "k0"]
    outbox.fail(relay, blocked[:1], delay=3600)
    suspects(outbox, relay, blocked[1:])
    suspects(outbox, relay, others)
    sent: list[int] = []
    for _ in range(10):
        if claims := holder.claim(limit=100, suspects=True):
            outbox.publish(relay, claims)
            sent += [c.seq for c in claims]
    assert sorted(sent) == [c.seq for c in others]
    # When the key is free, they are suspects again: one of them may have killed its relay.
    outbox.sql("UPDATE outbox.delivery SET available_at = now() WHERE hold = 'TIME'")
    outbox.publish(relay, holder.claim())
    assert outbox.sql("SELECT hold::text, count(*) FROM outbox.delivery"
                      " WHERE state = 'PENDING' AND key_hash = outbox.key_hash('k0')"
                      " GROUP BY 1")[0] == ("SUSPECT", 119)  # fmt: skip


def test_what_is_behind_a_suspect_that_goes_alone_waits_for_it(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 4, keys=2)  # k1 k0 k1 k0
    claims = holder.claim()
    suspects(outbox, relay, claims)
    outbox.sql("UPDATE outbox.delivery SET crashes = 2 WHERE seq = 2")
    seqs = []
    while claims := holder.claim(suspects=True):
        seqs += [c.seq for c in claims]
        outbox.publish(relay, claims)
    assert sorted(seqs) == [1, 2, 3, 4]
    assert seqs.index(2) < seqs.index(4)


def pages(outbox: Outbox, call: str, *params: object) -> int:
    plan = outbox.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}", *params)
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


def test_keys_that_wait_cost_nobody_else_anything(outbox: Outbox) -> None:
    """Ten thousand keys, each with one event that is tried again in an hour and one behind it."""
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 20_000, keys=10_000)
    claims = holder.claim(limit=10_000)
    outbox.fail(relay, claims, delay=3600)
    assert holder.claim(limit=20_000) == []  # those behind step aside
    assert outbox.value("SELECT count(*) FROM outbox.deliveries WHERE hold = 'KEY'") == 10_000
    outbox.emit(ordering_key="other")
    claim = (
        "SELECT * FROM outbox.claim(%s, 'relay', 'me', 7, 100, '1 min', 20000,"
        " pg_postmaster_start_time(), true, false, %s, %s::smallint[], 100)"
    )
    assert pages(outbox, claim, relay, holder.token, holder.lanes) < 2_000
    finish = "SELECT * FROM outbox.finish_published(%s, 7, '{20001}', '{x}')"
    assert pages(outbox, finish, relay) < 200
    assert outbox.value("SELECT state FROM outbox.deliveries WHERE seq = 20001") == "PUBLISHED"


def test_a_sweep_lets_go_on_what_nobody_else_did(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 100, keys=50)
    claims = holder.claim(limit=50)
    outbox.fail(relay, claims, delay=3600)
    assert holder.claim() == []
    # By hand, unnoticed.
    outbox.sql("UPDATE outbox.delivery SET hold = 'NONE' WHERE hold = 'TIME'")
    steps = 0
    after = None
    while True:
        after = outbox.deliveries(relay).sweep_keys(holder.lanes, after, 20)
        steps += 1
        if after is None:
            break
    assert steps == 3
    assert outbox.value("SELECT count(*) FROM outbox.deliveries WHERE hold = 'KEY'") == 0


def test_a_sweep_leaves_keys_that_wait_and_lanes_of_others(outbox: Outbox) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 100, keys=50)
    outbox.fail(relay, holder.claim(limit=50), delay=3600)
    assert holder.claim() == []
    assert outbox.deliveries(relay).sweep_keys(holder.lanes, None, 1000) is None
    outbox.sql("UPDATE outbox.delivery SET hold = 'NONE' WHERE hold = 'TIME'")
    assert outbox.deliveries(relay).sweep_keys([], None, 1000) is None
    assert outbox.value("SELECT count(*) FROM outbox.deliveries WHERE hold = 'KEY'") == 50


# Retries and the line -----------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", ["None", "Key"])
def test_retries_leave_a_part_of_every_claim_for_the_line(outbox: Outbox, ordering: str) -> None:
    relay = outbox.register(ordering=ordering)
    holder = Holder(outbox, relay) if ordering == "Key" else None

    def claim(limit: int) -> list[Claim]:
        return holder.claim(limit) if holder else outbox.claim(relay, limit)

    emit_many(outbox, 100, keys=100)
    outbox.fail(relay, claim(100))
    claims = claim(20)
    assert len(claims) == 20  # nothing is in line: they may have it all
    outbox.fail(relay, claims)
    outbox.sql(
        "INSERT INTO outbox.event (event_type, payload, ordering_key)"
        " SELECT 'a.b', '', 'new' || i FROM generate_series(1, 40) i"
    )
    claims = claim(20)
    assert len(claims) == 20
    assert sum(c.seq > 100 for c in claims) == 5


@pytest.mark.parametrize("ordering", ["None", "Key"])
@pytest.mark.parametrize("megabytes", [1, 3])
def test_large_retries_leave_bytes_for_the_line(
    outbox: Outbox, ordering: str, megabytes: int
) -> None:
    relay = outbox.register(ordering=ordering)
    holder = Holder(outbox, relay) if ordering == "Key" else None

    def claim() -> list[Claim]:
        return holder.claim() if holder else outbox.claim(relay)

    for n in range(12):
        outbox.emit(payload=bytes(megabytes * 1_000_000), ordering_key=f"sick{n}")
    while claims := claim():
        outbox.fail(relay, claims, delay=3600)
    outbox.sql("UPDATE outbox.delivery SET available_at = now()")
    claims = claim()
    assert len(claims) == (9 if megabytes == 1 else 3)  # nothing is in line: all that fits
    outbox.fail(relay, claims)
    outbox.emit(payload=bytes(1000), ordering_key="well")
    assert "well" in {c.ordering_key for c in claim()}


# A change of ordering -----------------------------------------------------------------------------


def holds(outbox: Outbox) -> list[tuple[str, int]]:
    return outbox.sql("SELECT hold::text, lane FROM outbox.deliveries ORDER BY seq")


def test_what_is_given_back_after_the_relay_stopped_ordering_waits_for_nobody(
    outbox: Outbox,
) -> None:
    """The last statement of a process that ordered comes late."""
    relay = outbox.register(ordering="Key")
    emit_many(outbox, 3, keys=1)
    claims = Holder(outbox, relay).claim()
    outbox.register(ordering="None")
    outbox.fail(relay, claims[:1], delay=0)
    outbox.fail(relay, claims[1:], hold=Hold.KEY)
    assert holds(outbox) == [("TIME", -1)] * 3
    assert len(outbox.claim(relay)) == 3


def test_a_claim_in_order_parks_nothing_that_was_just_taken_out_of_its_lane(
    outbox: Outbox,
) -> None:
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 1, keys=1)
    outbox.fail(relay, holder.claim(), delay=1)
    emit_many(outbox, 1, keys=1)
    with outbox.connect() as changing:
        changing.execute("SELECT outbox.register_relay('relay', '{*}', NULL, 'None')")
        claiming = threading.Thread(target=holder.claim)
        claiming.start()
        wait_until(lambda: waiting_for_a_lock(outbox), 10, "the claim waits for the change")
        changing.commit()
        claiming.join(10)
    assert holds(outbox) == [("TIME", -1)] * 2


def test_a_process_that_does_not_order_leaves_the_lanes_alone(outbox: Outbox) -> None:
    """It was started before the relay's ordering changed."""
    relay = outbox.register(ordering="Key")
    holder = Holder(outbox, relay)
    emit_many(outbox, 2, keys=1)
    outbox.fail(relay, holder.claim(1))
    assert outbox.claim(relay, owner="old") == []
    assert outbox.claim(relay, owner="old", suspects=True) == []
    assert [c.seq for c in holder.claim()] == [1, 2]


def test_nothing_is_claimed_for_a_relay_that_was_not_meant(outbox: Outbox) -> None:
    """The database was restored, and the id is another relay's."""
    relay = outbox.register("other")
    emit_many(outbox, 3)
    ours = Deliveries(outbox.conn, relay, "ours", "pod-1", timedelta(minutes=1))
    assert ours.turn(None, Wanted(fresh_token(), 10, UNORDERED, floor=0), None).claims == []
    assert ours.expire(timedelta(0), UNORDERED, 10, 0, block=False) == []
    assert outbox.states() == {"PENDING": 3}
