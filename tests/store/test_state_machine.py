"""
Any sequence of what producers, relays, reapers and people do keeps the promises (LC-33).

Two relays, one of them ordered and with two processes, on a real database; after every step the
invariants are looked at, and in the end everything is drained and counted. Answers are lost, lanes
move, leases are renewed while batches end, clocks jump, and a backup takes the database's place.
"""

import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dev.services import Postgres, wait_until
from fixtures.bulk import Bulk
from fixtures.made_settings import relay_settings
from fixtures.outbox import Holder, Outbox
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State
from outbox_core.store.deliveries import UNORDERED, Finished, Wanted
from outbox_core.store.lanes import LANES
from outbox_core.store.tokens import fresh_token
from outbox_relay.worker.reaper import Reaper

NUMBERS = count(1)
DISORDER = """
    SELECT 'batch', token FROM outbox.batch b
     WHERE seqs <> ARRAY(SELECT s FROM unnest(seqs) s ORDER BY s) OR first_seq <> seqs[1]
        OR seqs = '{}'
        OR NOT ARRAY(SELECT outbox.delivery_lane(r.ordering = 'Key', e.ordering_key, e.seq)
                       FROM outbox.event e, outbox.relay r
                      WHERE e.seq = ANY (b.seqs) AND r.id = b.relay_id) <@ lanes
    UNION ALL
    SELECT 'published', token FROM outbox.published
     WHERE seqs <> ARRAY(SELECT s FROM unnest(seqs) s ORDER BY s) OR first_seq <> seqs[1]
        OR last_seq <> seqs[size] OR size <> cardinality(seqs) OR size <> cardinality(results)
        OR seqs = '{}' OR first_at > last_at OR size <> coalesce(cardinality(times), size)
"""
KEYS = st.sampled_from(["k1", "k2", "k3", None])


class OutboxMachine(RuleBasedStateMachine):
    server: Postgres
    template: str

    @initialize()
    def start(self) -> None:
        self.name = f"machine_{next(NUMBERS)}"
        self.outbox = Outbox(self.server.create_database(self.name, self.template))
        self.plain = self.outbox.register("plain")
        self.ordered = self.outbox.register("ordered", ordering="Key")
        self.holders = [
            Holder(self.outbox, self.ordered, 128, "pod-1"),
            Holder(self.outbox, self.ordered, 128, "pod-2"),
        ]
        self.flights: list[tuple[int, list[Claim], Holder | None]] = []
        self.emitted: list[str] = []
        self.attempts: dict[tuple[int, int], int] = {}
        self.arrived: dict[str, list[int]] = defaultdict(list)
        self.replayed: set[int] = set()
        self.backup: list[str] | None = None

    # What happens ---------------------------------------------------------------------------

    @rule(key=KEYS, later=st.booleans(), many=st.integers(1, 4))
    def emit(self, key: str | None, later: bool, many: int) -> None:
        due = self.outbox.value("SELECT now() + interval '1 h'") if later else None
        for _ in range(many):
            event_id = self.outbox.emit(ordering_key=key, available_at=due, max_attempts=4)
            self.emitted.append(str(event_id))

    @rule(limit=st.integers(1, 5), suspects=st.booleans())
    def claim_plain(self, limit: int, suspects: bool) -> None:
        claims = self.outbox.claim(self.plain, limit, suspects=suspects)
        assert len(claims) <= limit
        if claims:
            self.flights.append((self.plain, claims, None))

    @rule(which=st.integers(0, 1), limit=st.integers(1, 5), suspects=st.booleans())
    def claim_ordered(self, which: int, limit: int, suspects: bool) -> None:
        holder = self.holders[which]
        if self.is_in_flight(holder):
            return
        claims = holder.claim(limit, suspects)
        assert len(claims) <= limit
        if claims:
            self.flights.append((self.ordered, claims, holder))

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), outcome=st.sampled_from(["publish", "retry", "later", "dead", "return"]))
    def finish(self, data: Any, outcome: str) -> None:
        relay, claims, _ = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        self.end(relay, claims, outcome)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        """A pod dies with a batch in flight; somebody notices."""
        relay, claims, holder = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        published = data.draw(st.booleans())
        if published:  # after the publish, before it was written down
            self.note(relay, claims)
        if holder is None:
            self.outbox.end_leases(claims[0].token)
        else:
            holder.expire()
        self.reap(relay)
        if holder is not None:
            self.holders[self.holders.index(holder)] = Holder(
                self.outbox, relay, LANES, holder.owner
            )
        if data.draw(st.booleans()):  # it was only frozen, and wakes up
            assert len(self.lost(relay, claims)) == len(claims)

    @rule(which=st.sampled_from(["plain", "ordered"]))
    def reap_for_nothing(self, which: str) -> None:
        before = self.deliveries_now()
        self.reap(self.plain if which == "plain" else self.ordered)
        assert self.deliveries_now() == before

    @rule()
    def time_passes(self) -> None:
        """What was to come later is due."""
        self.outbox.sql("UPDATE outbox.delivery SET available_at = now() WHERE hold <> 'NONE'"
                        " AND state = 'PENDING'")  # fmt: skip

    @rule(relay=st.sampled_from(["plain", "ordered"]), reset=st.booleans())
    def replay_one(self, relay: str, reset: bool) -> None:
        self.outbox.unpack()
        rows = self.outbox.sql(
            "UPDATE outbox.delivery d SET state = 'PENDING', hold = 'TIME', available_at = now(),"
            " previous_published_at = coalesce(published_at, previous_published_at),"
            " published_at = NULL,"
            " attempts_base = CASE WHEN %s THEN attempts ELSE attempts_base END"
            " WHERE (relay_id, seq) = (SELECT relay_id, d.seq FROM outbox.delivery d"
            "  JOIN outbox.relay r ON r.id = d.relay_id"
            "  WHERE r.name = %s AND state IN ('PUBLISHED', 'DEAD') ORDER BY seq LIMIT 1)"
            " RETURNING seq",
            reset,
            relay,
        )
        self.replayed.update(seq for (seq,) in rows)

    @rule(relay=st.sampled_from(["plain", "ordered"]), out=st.booleans())
    def replay_many(self, relay: str, out: bool) -> None:
        states = ["DEAD", "PUBLISHED"] if out else ["DEAD"]
        bulk = Bulk(
            self.outbox,
            f"replay-{next(NUMBERS)}",
            relay=relay,
            select={"states": states, "eventTypes": ["*"]},
        )
        while bulk.take().outcome != "done":
            pass
        assert bulk.progress().replayed == bulk.matched
        rows = self.outbox.sql("SELECT seq FROM outbox.deliveries WHERE replay_id = %s", bulk.id)
        self.replayed.update(seq for (seq,) in rows)

    # Answers that are lost ----------------------------------------------------------------------

    @rule(limit=st.integers(1, 5), late=st.booleans())
    def lose_the_answer_to_a_plain_claim(self, limit: int, late: bool) -> None:
        token = fresh_token()
        deliveries = self.outbox.deliveries(self.plain)
        if late:  # the request reaches the server only after its client has asked about it
            assert deliveries.recover(token) == 0
        turn = deliveries.turn(None, Wanted(token, limit, UNORDERED, floor=0), None)
        assert deliveries.recover(token) == len(turn.claims)

    @rule(which=st.integers(0, 1), limit=st.integers(1, 5), late=st.booleans())
    def lose_the_answer_to_an_ordered_claim(self, which: int, limit: int, late: bool) -> None:
        holder = self.holders[which]
        if self.is_in_flight(holder):
            return
        token, fresh, old = fresh_token(), fresh_token(), holder.token
        deliveries = self.outbox.deliveries(self.ordered, holder.owner)
        wanted = Wanted(token, limit, holder.lanes, floor=0, lane_limit=limit)
        claims = [] if late else deliveries.turn(None, wanted, old).claims
        assert holder.lanes_of_relay.fence(old, fresh)
        holder.token = fresh
        assert deliveries.recover(token) == len(claims)
        if late:
            assert deliveries.turn(None, wanted, old).claims == []

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), outcome=st.sampled_from(["publish", "retry", "return"]))
    def lose_the_answer_to_a_finalisation(self, data: Any, outcome: str) -> None:
        """It is written down, and written down once more."""
        relay, claims, _ = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        self.end(relay, claims, outcome)
        before = self.deliveries_now()
        done = Finished(
            claims[0].token, [c.seq for c in claims], [f"t[0]@{c.seq}" for c in claims], []
        )
        lost = self.outbox.deliveries(relay).turn(done._replace(again=True), None, None).lost
        assert lost == [] if outcome == "publish" else lost == [c.seq for c in claims]
        assert self.deliveries_now() == before

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), outcome=st.sampled_from(["publish", "retry", "dead", "return"]))
    def renew_while_it_is_finalised(self, data: Any, outcome: str) -> None:
        relay, claims, _ = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        with self.outbox.connect() as keeper:
            seqs = [c.seq for c in claims]
            kept = self.outbox.deliveries(relay, conn=keeper).renew(claims[0].token, seqs)
            assert kept == len(claims)
            self.beside(lambda: self.end(relay, claims, outcome), keeper.commit)

    # Lanes, clocks, servers -----------------------------------------------------------------------

    @rule(which=st.integers(0, 1), many=st.integers(1, LANES))
    def move_lanes(self, which: int, many: int) -> None:
        """A process lets go of some, while nothing of it is in flight; the other takes them."""
        giver, taker = self.holders[which], self.holders[1 - which]
        if self.is_in_flight(giver):
            return
        given = giver.lanes[:many]
        giver.lanes_of_relay.let_go(giver.token, given)
        giver.lanes = giver.lanes[many:]
        won = taker.lanes_of_relay.acquire(taker.token, many)
        taker.lanes = sorted([*taker.lanes, *won])
        for holder in self.holders:
            assert holder.lanes_of_relay.seen(holder.token).held == holder.lanes

    @rule()
    def set_the_clock_back(self) -> None:
        """Whatever was stored before lies in the future now."""
        self.outbox.sql(
            "UPDATE outbox.delivery SET available_at = available_at + interval '1 h'"
            " WHERE state = 'PENDING' AND hold = 'NONE'"
        )
        self.outbox.sql(
            "UPDATE outbox.delivery SET lease_until = lease_until + interval '1 h'"
            " WHERE state = 'CLAIMED'"
        )
        self.outbox.sql("UPDATE outbox.batch SET lease_until = lease_until + interval '1 h'")
        self.outbox.sql("UPDATE outbox.holder SET expires_at = expires_at + interval '1 h'")

    @rule()
    def set_the_clock_forward(self) -> None:
        """All leases are over, although everybody is alive; and somebody reaps."""
        self.everything_is_taken_over()
        for relay, claims, _ in self.flights:
            assert len(self.lost(relay, claims)) == len(claims)
        self.flights.clear()

    @precondition(lambda self: self.backup is None)
    @rule()
    def make_a_backup(self) -> None:
        self.copy(self.name, f"{self.name}_backup")
        self.backup = list(self.emitted)

    @precondition(lambda self: self.backup is not None)
    @rule()
    def restore_the_backup(self) -> None:
        """Processes live on, and remember what never happened."""
        assert self.backup is not None
        self.emitted, self.backup = self.backup, None
        self.disconnect()
        self.server.drop_database(self.name)
        self.copy(f"{self.name}_backup", self.name)
        self.server.drop_database(f"{self.name}_backup")
        before = self.deliveries_now()
        for relay, claims, _ in self.flights:  # what they had is known, or is nobody's
            token = claims[0].token
            known = self.outbox.value(
                "SELECT count(*) FROM outbox.deliveries WHERE claim_token = %s", token
            )
            if not known:
                self.lost(relay, claims)
        assert self.deliveries_now() == before
        self.everything_is_taken_over()
        self.flights.clear()
        self.arrived.clear()
        self.attempts.clear()

    # What is true after every step ------------------------------------------------------------

    @invariant()
    def every_event_has_one_delivery_per_relay(self) -> None:
        if not hasattr(self, "outbox"):
            return
        counts = self.outbox.sql(
            "SELECT relay_id, count(*), count(DISTINCT seq) FROM outbox.deliveries GROUP BY 1"
        )
        assert all(n == distinct == len(self.emitted) for _, n, distinct in counts)

    @invariant()
    def every_place_is_in_order(self) -> None:
        """Nothing is a member of what does not list it by its range, size, lanes and times."""
        if not hasattr(self, "outbox"):
            return
        assert self.outbox.sql(DISORDER) == []

    @rule(some=st.integers(1, 3))
    def take_members_out(self, some: int) -> None:
        """Which anybody may do at any time, and which changes nothing that people see."""
        before = self.outbox.sql("SELECT relay_id, seq, state, published_at, claimed_by, attempts"
                                 " FROM outbox.deliveries ORDER BY 1, 2")  # fmt: skip
        for place in ("batch", "published"):
            for token, seqs in self.outbox.sql(f"SELECT token, seqs FROM outbox.{place}"):
                if rest := seqs[some:]:
                    self.outbox.sql(
                        f"UPDATE outbox.{place} SET seqs = %s WHERE token = %s", rest, token
                    )
                else:
                    self.outbox.sql(f"DELETE FROM outbox.{place} WHERE token = %s", token)
        after = self.outbox.sql("SELECT relay_id, seq, state, published_at, claimed_by, attempts"
                                " FROM outbox.deliveries ORDER BY 1, 2")  # fmt: skip
        assert after == before

    @invariant()
    def attempts_only_grow(self) -> None:
        if not hasattr(self, "outbox"):
            return
        for relay, seq, attempts in self.outbox.sql(
            "SELECT relay_id, seq, attempts FROM outbox.deliveries"
        ):
            assert attempts >= self.attempts.get((relay, seq), 0)
            self.attempts[relay, seq] = attempts

    @invariant()
    def claims_are_what_is_in_flight(self) -> None:
        if not hasattr(self, "outbox"):
            return
        claimed = self.outbox.sql(
            "SELECT relay_id, seq FROM outbox.deliveries WHERE state = 'CLAIMED' ORDER BY 1, 2"
        )
        assert claimed == sorted((r, c.seq) for r, claims, _ in self.flights for c in claims)

    @invariant()
    def nothing_overtook_within_a_key(self) -> None:
        for key, seqs in getattr(self, "arrived", {}).items():
            assert seqs == sorted(seqs), f"{key}: {seqs}"

    @invariant()
    def no_held_key_is_in_two_hands(self) -> None:
        if not hasattr(self, "outbox"):
            return
        twice = self.outbox.sql(
            "SELECT l.lane FROM outbox.deliveries d JOIN outbox.event e USING (seq),"
            " outbox.delivery_lane(true, e.ordering_key, e.seq) AS l (lane)"
            " WHERE d.relay_id = %s AND d.state = 'CLAIMED'"
            " GROUP BY l.lane HAVING count(DISTINCT d.claimed_by) > 1",
            self.ordered,
        )
        assert twice == []

    # In the end -------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "outbox"):
            return
        try:
            while self.flights:
                relay, claims, _ = self.flights.pop()
                self.end(relay, claims, "publish")
            for turn in range(300):
                self.time_passes()
                left = self.outbox.value(
                    "SELECT count(*) FROM outbox.deliveries WHERE state = 'PENDING'"
                )
                if left == 0:
                    break
                if claims := self.outbox.claim(self.plain, suspects=turn % 2 == 0):
                    self.end(self.plain, claims, "publish")
                for holder in self.holders:
                    if claims := holder.claim(suspects=turn % 2 == 0):
                        self.end(self.ordered, claims, "publish")
            stuck = self.outbox.sql(
                "SELECT key_hash FROM outbox.delivery d WHERE state = 'PENDING' AND NOT EXISTS"
                " (SELECT 1 FROM outbox.delivery b WHERE b.relay_id = d.relay_id"
                "   AND b.key_hash = d.key_hash AND b.hold = 'DEAD' AND b.seq < d.seq)"
            )
            assert stuck == [], "something waits for nobody"
            self.nothing_overtook_within_a_key()
        finally:
            self.outbox.close()
            self.server.drop_database(self.name)
            if self.backup is not None:
                self.server.drop_database(f"{self.name}_backup")

    # ------------------------------------------------------------------------------------------

    def end(self, relay: int, claims: list[Claim], outcome: str) -> None:
        if outcome == "publish":
            self.note(relay, claims)
            assert self.outbox.publish(relay, claims) == []
            return
        first, rest = claims[:1], claims[1:]
        ordered = relay == self.ordered
        if outcome == "dead":
            hold = Hold.DEAD if ordered and first[0].ordering_key else Hold.NONE
            self.outbox.fail(relay, first, State.DEAD, hold=hold)
        else:
            delay = {"later": 3600.0, "retry": 0.0, "return": 0.0}[outcome]
            self.outbox.fail(relay, first, delay=delay, refund=outcome == "return")
        if rest:  # behind a failure: given back
            key = first[0].ordering_key
            mates = [c for c in rest if ordered and key is not None and c.ordering_key == key]
            others = [c for c in rest if c not in mates]
            if mates:
                self.outbox.fail(relay, mates, hold=Hold.KEY, refund=True)
            if others:
                self.outbox.fail(relay, others, refund=True)

    def note(self, relay: int, claims: list[Claim]) -> None:
        """They reached the broker: the first time of each counts for the order."""
        if relay != self.ordered:
            return
        for claim in claims:
            if claim.ordering_key and claim.seq not in self.replayed:
                seen = self.arrived[claim.ordering_key]
                if claim.seq not in seen:
                    seen.append(claim.seq)

    def is_in_flight(self, holder: Holder) -> bool:
        """A process finalises its batch before it looks into the same lanes again."""
        return any(flight[2] is holder for flight in self.flights)

    def deliveries_now(self) -> list[tuple[Any, ...]]:
        return self.outbox.sql("SELECT d::text FROM outbox.deliveries d ORDER BY relay_id, seq")

    def beside(self, act: Callable[[], None], then: Callable[[], None]) -> None:
        """`then` is done as soon as `act` waits for a lock."""
        failed: list[BaseException] = []

        def guarded() -> None:
            try:
                act()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        with self.outbox.connect(autocommit=True) as other:
            wait_until(
                lambda: (
                    other.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone()
                    or not thread.is_alive()
                ),
                10,
                "it waits",
            )
        then()
        thread.join(10)
        if failed:
            raise failed[0]

    def everything_is_taken_over(self) -> None:
        for holder in self.holders:
            holder.conn.close()
        self.outbox.sql("UPDATE outbox.holder SET expires_at = now() - interval '1 s'")
        self.outbox.end_leases()
        self.reap(self.plain)
        self.reap(self.ordered)
        self.holders = [
            Holder(self.outbox, self.ordered, LANES // 2, "pod-1"),
            Holder(self.outbox, self.ordered, LANES, "pod-2"),
        ]

    def disconnect(self) -> None:
        self.outbox.close()

    def copy(self, source: str, target: str) -> None:
        """Which needs everybody out of the source for a moment."""
        self.disconnect()
        self.server.create_database(target, source)
        self.outbox.conn = self.outbox.connect(autocommit=True)
        for holder in self.holders:
            holder.reconnect()

    def lost(self, relay: int, claims: list[Claim]) -> list[int]:
        return self.outbox.publish(relay, claims)

    def reap(self, relay: int) -> None:
        ordering = "Key" if relay == self.ordered else "None"
        policy = {"baseDelay": "10ms", "maxDelay": "10ms", "jitter": 0}
        Reaper(
            self.outbox.conn,
            relay,
            relay_settings(ordering=ordering, retry=policy, lease=timedelta(minutes=1)),
        ).reap()


@pytest.mark.pg
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lc_33_oo_17_oo_32_any_history_keeps_the_promises(
    postgres: Postgres, migrated_template: str
) -> None:
    OutboxMachine.server, OutboxMachine.template = postgres, migrated_template
    run_state_machine_as_test(
        OutboxMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            # No shrinking: on a real database it would exceed the time limit, without a report.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )
