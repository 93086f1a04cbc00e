"""Order within a key: what goes out together, and who waits when something failed."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.made_settings import relay_settings, retry_policy
from fixtures.moments import with_moments
from fixtures.relays import Broker
from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused, Unsent, Verdict
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State
from outbox_core.model.ordering import BEHIND, KeyOrder, waves, with_holds
from outbox_core.model.retry import judge
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import RelayMetrics
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.context import Context
from outbox_relay.worker.pipeline import Worker
from outbox_relay.worker.polling import Crew

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ACKED = Acked("t[0]@1")
REFUSED = Refused(Error.of(ErrorClass.TRANSIENT, "CODE", "text"))
TOO_LARGE = Refused(Error.of(ErrorClass.EVENT, "CODE", "text"))
POLICY = retry_policy(jitter=0.0)

KEYS = st.sampled_from(["k1", "k2", "k3", None])
ROUTES = st.sampled_from(["t1", "t2", None])
OUTCOMES = st.sampled_from([ACKED, REFUSED, TOO_LARGE, Unsent("stopped"), Unsent("parked", 1.0)])


def claim(seq: int, key: str | None, **fields: Any) -> Claim:
    values: dict[str, Any] = dict.fromkeys(Claim._fields)
    values |= {
        "seq": seq, "token": 7, "claimed_at": NOW, "created_at": NOW, "attempts": 1,
        "attempts_base": 0, "crashes": 0, "lane": 0, "event_id": f"e{seq}", "event_type": "a.b",
        "payload": b"", "ordering_key": key,
    }  # fmt: skip
    return Claim(**with_moments({**values, **fields}))


def batch_of(*keys: str | None) -> list[Claim]:
    return [claim(seq, key) for seq, key in enumerate(keys, 1)]


def seqs(cut: list[list[Claim]]) -> list[list[int]]:
    return [[c.seq for c in wave] for wave in cut]


def no_promise(_: Claim) -> None:
    return None


# Waves --------------------------------------------------------------------------------------


def test_without_a_promise_a_wave_has_one_event_of_each_key() -> None:
    batch = batch_of("a", "a", "b", "a", "b")
    assert seqs(waves(batch, no_promise)) == [[1, 3], [2, 5], [4]]


def test_a_run_of_one_route_shares_a_wave() -> None:
    batch = batch_of("a", "a", "b", "a")
    assert seqs(waves(batch, lambda _: "topic")) == [[1, 2, 3, 4]]


def test_where_the_route_of_a_key_changes_a_new_wave_begins() -> None:
    routes = {1: "t1", 2: "t1", 3: "t2", 4: "t2", 5: "t1"}
    batch = batch_of("a", "a", "a", "a", "a")
    assert seqs(waves(batch, lambda c: routes[c.seq])) == [[1, 2], [3, 4], [5]]


def test_an_event_that_is_alone_with_its_key_is_not_asked_for_its_route() -> None:
    def route_of(claim: Claim) -> str:
        assert claim.ordering_key == "a"
        return "t1"

    assert seqs(waves(batch_of("a", "b", None, "a"), route_of)) == [[1, 2, 3, 4]]


def test_oo_37_events_without_a_key_all_go_first() -> None:
    batch = batch_of("a", None, "a", None, "a", None)
    assert seqs(waves(batch, no_promise)) == [[1, 2, 4, 6], [3], [5]]


def test_an_empty_batch_has_nothing_to_send() -> None:
    assert seqs(waves([], no_promise)) == [[]]


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, ROUTES), max_size=30))
def test_waves_lose_nothing_and_keep_each_key_in_order(
    wanted: list[tuple[str | None, str | None]],
) -> None:
    batch = batch_of(*(key for key, _ in wanted))
    routes = {c.seq: route for c, (_, route) in zip(batch, wanted, strict=True)}
    cut = waves(batch, lambda c: routes[c.seq])
    assert sorted(c.seq for wave in cut for c in wave) == [c.seq for c in batch]
    for wave in cut:
        assert [c.seq for c in wave] == sorted(c.seq for c in wave)
    for key in {c.ordering_key for c in batch} - {None}:
        sent = [c.seq for wave in cut for c in wave if c.ordering_key == key]
        assert sent == sorted(sent)


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, ROUTES), max_size=30))
def test_a_wave_shares_a_key_only_within_one_route(
    wanted: list[tuple[str | None, str | None]],
) -> None:
    batch = batch_of(*(key for key, _ in wanted))
    routes = {c.seq: route for c, (_, route) in zip(batch, wanted, strict=True)}
    for wave in waves(batch, lambda c: routes[c.seq]):
        for key in {c.ordering_key for c in wave} - {None}:
            mates = [routes[c.seq] for c in wave if c.ordering_key == key]
            assert len(mates) == 1 or set(mates) in ({"t1"}, {"t2"})


# Who is left --------------------------------------------------------------------------------


def test_a_key_is_broken_by_whatever_is_not_acknowledged() -> None:
    wave = batch_of("a", "b", "c", None)
    order = KeyOrder()
    order.saw(wave, [ACKED, REFUSED, Unsent("stopped"), REFUSED])
    assert order.failed_keys == {"b", "c"}


def test_a_key_is_broken_by_what_is_in_doubt() -> None:
    order = KeyOrder()
    order.saw(batch_of("a", "b"), [None, ACKED])
    assert order.failed_keys == {"a"}


def test_tc_05_an_outcome_is_missing_for_nobody() -> None:
    with pytest.raises(ValueError, match="shorter"):
        KeyOrder().saw(batch_of("a", "b"), [ACKED])


def test_what_stands_behind_a_failure_is_left_and_nothing_else() -> None:
    wave = batch_of("a", "b", None, "a")
    order = KeyOrder()
    assert list(order.waves(wave, lambda _: "topic")) == [wave]
    order.fail(wave[0])
    assert [c.seq for c in wave if order.blocks(c)] == [1, 4]
    assert seqs(list(order.waves(wave, lambda _: "topic"))) == [[2, 3]]


def test_a_failure_between_two_waves_takes_its_key_out_of_the_later_ones() -> None:
    order = KeyOrder()
    sent = []
    for wave in order.waves(batch_of("a", "b", "a", "b", "a"), no_promise):
        sent.append(wave)
        order.saw(wave, [REFUSED if c.ordering_key == "a" else ACKED for c in wave])
    assert seqs(sent) == [[1, 2], [4]]


def test_where_nothing_is_ordered_no_key_holds_anything_up() -> None:
    batch = batch_of("a", "a", None)
    order = KeyOrder(enabled=False)
    order.saw(batch, [REFUSED, None, REFUSED])
    assert not any(order.blocks(c) for c in batch)
    assert list(order.waves(batch, no_promise)) == [batch]
    assert order.settle(batch, [REFUSED] * 3) == [REFUSED] * 3


def test_of_each_key_only_the_first_failure_is_one() -> None:
    batch = batch_of("a", "a", "b", None, "a", None)
    outcomes: list[Outcome] = [ACKED, REFUSED, ACKED, REFUSED, TOO_LARGE, REFUSED]
    settled = KeyOrder().settle(batch, outcomes)
    assert settled == [ACKED, REFUSED, ACKED, REFUSED, BEHIND, REFUSED]


class Sender:
    """The worker's own way of sending a batch, to a broker with scripted answers."""

    def __init__(self, answer: Callable[[Claim], Outcome]) -> None:
        self.broker = Broker()
        self.broker.answer = answer
        self.context = Context(
            settings=relay_settings(ordering="Key"),
            relay=1,
            publisher=self.broker,
            policy=POLICY,
            crew=Crew(1, None),
            breaker=Breaker(lambda: 0.0),
            health=Health(),
            metrics=RelayMetrics(),
        )

    def send(self, batch: list[Claim]) -> Sequence[Outcome]:
        return Worker(0, self.context)._in_waves(batch)


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, OUTCOMES), max_size=20), st.booleans())
def test_oo_39_nothing_of_a_key_is_sent_after_a_call_in_which_something_of_it_failed(
    wanted: list[tuple[str | None, Outcome]], gapless: bool
) -> None:
    batch = batch_of(*(key for key, _ in wanted))
    answers = {c.seq: outcome for c, (_, outcome) in zip(batch, wanted, strict=True)}
    sender = Sender(lambda c: answers[c.seq])
    sender.broker.gapless = gapless
    outcomes = sender.send(batch)
    failed: set[str | None] = set()
    sent = set()
    for call in sender.broker.calls:
        assert not {c.ordering_key for c in call} & failed
        failed |= {c.ordering_key for c in call if answers[c.seq] is not ACKED} - {None}
        sent |= {c.seq for c in call}
    for c, outcome in zip(batch, outcomes, strict=True):
        assert outcome is (answers[c.seq] if c.seq in sent else BEHIND)
        assert c.seq in sent or c.ordering_key in failed


def test_after_a_request_to_stop_the_first_wave_is_the_last() -> None:
    sender = Sender(lambda _: ACKED)
    sender.broker.before = lambda _: sender.context.stopping.set()
    outcomes = sender.send(batch_of("a", "a", "b", "a", None))
    assert seqs(sender.broker.calls) == [[1, 3, 5]]
    assert outcomes == [ACKED, BEHIND, ACKED, BEHIND, ACKED]


@pytest.mark.parametrize("answers", [[], [ACKED]])
def test_what_a_publisher_forgot_to_answer_for_is_not_published(
    monkeypatch: pytest.MonkeyPatch, answers: list[Outcome]
) -> None:
    sender = Sender(lambda _: ACKED)
    monkeypatch.setattr(sender.broker, "publish", lambda _: answers)
    with pytest.raises(ValueError, match="zip"):
        Worker(0, sender.context)._publish(batch_of("a", "b"))
    assert sender.context.metrics.registry.get_sample_value("outbox_published_total") == 0


# The holds that follow ----------------------------------------------------------------------


def held(pairs: list[tuple[Claim, Outcome]], block: bool = True) -> list[tuple[State, Hold]]:
    judged = [(c, judge(o, c, POLICY, 0.5)) for c, o in pairs]
    return [(v.state, v.hold) for v in with_holds(judged, block)]


def test_oo_43_what_stands_behind_a_retry_waits_for_the_key() -> None:
    a1, a2, b1, loose = batch_of("a", "a", "b", None)
    assert held([(a1, REFUSED), (a2, BEHIND), (b1, REFUSED), (loose, REFUSED)]) == [
        (State.PENDING, Hold.TIME),
        (State.PENDING, Hold.KEY),
        (State.PENDING, Hold.TIME),
        (State.PENDING, Hold.TIME),
    ]


def test_oo_44_a_dead_event_keeps_its_key_under_block_and_not_under_continue() -> None:
    pairs: list[tuple[Claim, Outcome]] = list(
        zip(batch_of("a", "a", None), (TOO_LARGE, BEHIND, TOO_LARGE), strict=True)
    )
    assert held(pairs, block=True) == [
        (State.DEAD, Hold.DEAD), (State.PENDING, Hold.KEY), (State.DEAD, Hold.NONE),
    ]  # fmt: skip
    assert held(pairs, block=False) == [
        (State.DEAD, Hold.NONE), (State.PENDING, Hold.TIME), (State.DEAD, Hold.NONE),
    ]  # fmt: skip


def test_what_is_given_back_as_a_whole_is_due_at_once() -> None:
    pairs: list[tuple[Claim, Outcome]] = [(c, Unsent("stopped")) for c in batch_of("a", "a")]
    assert held(pairs) == [(State.PENDING, Hold.TIME)] * 2


def test_a_suspect_stays_a_suspect_behind_a_failure() -> None:
    first, second = batch_of("a", "a")
    verdicts = [
        (first, Verdict(1, 7, State.PENDING, Hold.SUSPECT, delay=2.0)),
        (second, Verdict(2, 7, State.PENDING, Hold.SUSPECT)),
    ]
    assert [v.hold for v in with_holds(verdicts, True)] == [Hold.SUSPECT, Hold.SUSPECT]


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, OUTCOMES), max_size=20), st.booleans())
def test_holds_change_nothing_else_and_only_where_there_is_a_key(
    wanted: list[tuple[str | None, Outcome]], block: bool
) -> None:
    judged = [
        (c, judge(outcome, c, POLICY, 0.5))
        for c, (_, outcome) in zip(batch_of(*(k for k, _ in wanted)), wanted, strict=True)
        if outcome is not ACKED
    ]
    for (c, before), after in zip(judged, with_holds(judged, block), strict=True):
        assert after._replace(hold=before.hold) == before
        assert c.ordering_key is not None or after == before
        assert (after.hold is Hold.DEAD) == (
            block and after.state is State.DEAD and c.ordering_key is not None
        )


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, OUTCOMES), max_size=20))
def test_oo_39_under_block_nothing_behind_a_failure_is_due_before_it(
    wanted: list[tuple[str | None, Outcome]],
) -> None:
    batch = batch_of(*(key for key, _ in wanted))
    answers = {c.seq: outcome for c, (_, outcome) in zip(batch, wanted, strict=True)}
    outcomes = Sender(lambda c: answers[c.seq]).send(batch)
    judged = [
        (c, judge(o, c, POLICY, 0.5))
        for c, o in zip(batch, outcomes, strict=True)
        if not isinstance(o, Acked)
    ]
    broken: set[str] = set()
    for (c, _), verdict in zip(judged, with_holds(judged, True), strict=True):
        if c.ordering_key is None:
            continue
        assert (verdict.hold is Hold.KEY) == (c.ordering_key in broken)
        if verdict.state is State.DEAD or verdict.delay > 0:
            broken.add(c.ordering_key)
