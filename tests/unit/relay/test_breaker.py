"""The circuit breaker: an outage costs no event its budget, and ends by itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from conformance.publisher_contract import make_claim
from fixtures.made_settings import relay_settings, retry_policy
from fixtures.relays import Broker
from outbox_core.contract.reasons import ProcessReason
from outbox_core.errors import StoreUnavailable
from outbox_core.model.attempt import Acked, Error, ErrorClass, Refused, Unsent
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import RelayMetrics
from outbox_relay.worker.breaker import TRIAL_BATCH_EVENTS, Breaker, BreakerState
from outbox_relay.worker.context import Context
from outbox_relay.worker.keeper import Keeper
from outbox_relay.worker.pipeline import Worker
from outbox_relay.worker.polling import Crew

ACKED = Acked("t[0]@1")


def refused(kind: ErrorClass, text: str = "text") -> Refused:
    return Refused(Error.of(kind, "CODE", text))


OUTAGE = refused(ErrorClass.OUTAGE, "nobody there")
TRANSIENT = refused(ErrorClass.TRANSIENT)
TOO_LARGE = refused(ErrorClass.EVENT)
SICK = refused(ErrorClass.DESTINATION)
UNSENT = Unsent("behind")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fail(breaker: Breaker, probe: str | None, *outcomes: Acked | Refused | Unsent) -> None:
    """A batch ended so, and then the probe."""
    assert breaker.doubts(outcomes or [OUTAGE, OUTAGE])
    assert breaker.is_mine_to_probe()
    breaker.probed(probe)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock)


@pytest.fixture
def opened(breaker: Breaker) -> Breaker:
    fail(breaker, "nobody there")
    return breaker


@pytest.fixture
def on_trial(opened: Breaker) -> Breaker:
    opened.probed(None)
    assert opened.state is BreakerState.TRIAL
    return opened


def test_while_it_is_closed_everything_may_be_claimed(breaker: Breaker) -> None:
    assert breaker.allowance(2000) == 2000
    assert breaker.next_probe() is None


@pytest.mark.parametrize(
    "outcomes",
    [
        [ACKED, ACKED],
        [ACKED, OUTAGE, OUTAGE],
        [TRANSIENT, OUTAGE],
        [TOO_LARGE],
        [SICK, SICK],
        [SICK, TRANSIENT, OUTAGE],
        [UNSENT, UNSENT],
        [],
    ],
)
def test_failures_of_events_and_of_destinations_raise_no_doubt(
    breaker: Breaker, outcomes: list[Acked | Refused | Unsent]
) -> None:
    assert not breaker.doubts(outcomes)
    assert not breaker.saw(outcomes)
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("outcomes", [[OUTAGE, UNSENT, OUTAGE], [SICK, OUTAGE]])
def test_a_batch_that_failed_by_outage_alone_opens_it_if_the_probe_fails_too(
    breaker: Breaker, outcomes: list[Acked | Refused | Unsent]
) -> None:
    assert breaker.doubts(outcomes)
    assert breaker.is_mine_to_probe()
    breaker.probed("connection refused", ProcessReason.BROKER_REFUSED)
    assert not breaker.saw(outcomes)  # it has changed already
    assert breaker.state is BreakerState.OPEN
    assert breaker.reason == "connection refused"
    assert breaker.cause is ProcessReason.BROKER_REFUSED


def test_a_broker_that_answers_the_probe_is_not_to_blame(breaker: Breaker) -> None:
    fail(breaker, None)
    assert not breaker.saw([OUTAGE])
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allowance(2000) == 2000


def test_a_batch_alone_does_not_open_it(breaker: Breaker) -> None:
    assert not breaker.saw([OUTAGE, OUTAGE])
    assert breaker.state is BreakerState.CLOSED


def test_of_several_workers_in_doubt_one_probes_and_nobody_claims_meanwhile(
    breaker: Breaker,
) -> None:
    assert breaker.is_mine_to_probe()
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(breaker.is_mine_to_probe) for _ in range(3)]
        assert not wait(others, 0.05).done  # for the answer
        assert breaker.allowance(2000) == 0
        breaker.probed(None)
        assert not any(other.result(10) for other in others)
    assert breaker.allowance(2000) == 2000
    assert breaker.is_mine_to_probe()  # the next time is another matter


def test_while_it_is_open_nobody_needs_another_probe(opened: Breaker) -> None:
    assert not opened.doubts([OUTAGE])


def test_while_it_is_open_nothing_is_claimed_however_long(opened: Breaker, clock: Clock) -> None:
    clock.now += 400 * 86400
    assert opened.allowance(2000) == 0


def test_the_pause_between_probes_grows_to_its_limit(opened: Breaker, clock: Clock) -> None:
    pauses = []
    for _ in range(6):
        pause = opened.next_probe()
        assert pause is not None
        pauses.append(pause)
        clock.now += pause
        opened.probed("still away")
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert opened.reason == "still away"


def test_a_probe_that_is_overdue_is_due_now(opened: Breaker, clock: Clock) -> None:
    clock.now += 60
    assert opened.next_probe() == 0.0


def test_after_a_good_probe_one_small_batch_goes_first(on_trial: Breaker) -> None:
    assert on_trial.next_probe() is None
    assert on_trial.allowance(2000) == TRIAL_BATCH_EVENTS
    assert on_trial.allowance(2000) == 0


def test_a_batch_smaller_than_the_trial_stays_small(on_trial: Breaker) -> None:
    assert on_trial.allowance(3) == 3


def test_a_trial_that_succeeds_lets_everything_through(on_trial: Breaker) -> None:
    on_trial.allowance(2000)
    assert on_trial.saw([OUTAGE, ACKED])
    assert on_trial.state is BreakerState.CLOSED
    assert on_trial.reason == ""
    assert on_trial.allowance(2000) == 2000


def test_a_trial_that_is_refused_was_answered(on_trial: Breaker) -> None:
    on_trial.allowance(2000)
    assert on_trial.saw([TRANSIENT])
    assert on_trial.state is BreakerState.CLOSED


def test_a_trial_that_only_a_broken_destination_refused_does_not_blame_the_broker(
    on_trial: Breaker,
) -> None:
    on_trial.allowance(2000)
    assert on_trial.saw([SICK])
    assert on_trial.state is BreakerState.CLOSED


def test_a_trial_that_fails_as_does_the_probe_opens_it_again(on_trial: Breaker) -> None:
    on_trial.allowance(2000)
    fail(on_trial, "gone again")
    assert not on_trial.saw([OUTAGE])
    assert on_trial.state is BreakerState.OPEN
    assert on_trial.next_probe() == 1.0  # it comes and goes: more slowly


def test_a_trial_that_fails_while_the_broker_answers_ends_the_outage(on_trial: Breaker) -> None:
    """Else one sick topic, whose retries are due first, would keep all others waiting."""
    on_trial.allowance(2000)
    fail(on_trial, None)
    assert on_trial.state is BreakerState.CLOSED
    assert on_trial.allowance(2000) == 2000


def test_a_trial_that_found_nothing_to_send_is_made_again(on_trial: Breaker) -> None:
    on_trial.allowance(2000)
    on_trial.found_nothing()
    assert on_trial.allowance(2000) == TRIAL_BATCH_EVENTS


def test_a_trial_in_which_nothing_was_tried_is_made_again(on_trial: Breaker) -> None:
    on_trial.allowance(2000)
    assert not on_trial.saw([UNSENT])
    assert on_trial.allowance(2000) == TRIAL_BATCH_EVENTS


def test_after_success_the_next_outage_is_probed_soon_again(opened: Breaker, clock: Clock) -> None:
    for _ in range(6):
        opened.probed("still away")
    opened.probed(None)
    opened.saw([ACKED])
    fail(opened, "away again")
    assert opened.next_probe() == 0.5


def test_a_probe_does_not_change_a_breaker_that_is_not_open(breaker: Breaker) -> None:
    breaker.probed("too late")
    assert breaker.state is BreakerState.CLOSED
    assert breaker.reason == ""


@pytest.fixture
def worker_without_store(on_trial: Breaker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("OUTBOX_DSN", "host=127.0.0.1 port=1 user=nobody dbname=none")
    context = Context(
        settings=relay_settings(workers=1),
        relay=1,
        publisher=Broker(),
        policy=retry_policy(),
        crew=Crew(1, -1),
        breaker=on_trial,
        health=Health(),
        metrics=RelayMetrics(),
    )
    yield Worker(0, context)
    context.stopping.set()


def test_a_trial_that_the_store_prevented_is_made_again(
    worker_without_store: Worker, on_trial: Breaker
) -> None:
    with pytest.raises(StoreUnavailable):
        worker_without_store._cycle()
    assert on_trial.allowance(2000) == TRIAL_BATCH_EVENTS


def test_a_breaker_that_another_worker_closes_just_now_leaves_no_trouble(
    worker_without_store: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = worker_without_store._context
    fail(context.breaker, "no broker")
    report = context.health.trouble

    def after_another_closed_it(*args: Any) -> None:
        context.breaker.saw([Acked("t[0]@1")])
        context.health.clear("broker")
        report(*args)

    monkeypatch.setattr(context.health, "trouble", after_another_closed_it)
    worker_without_store._wait_for_broker()
    assert "broker" not in context.health.troubles
    assert context.metrics.registry.get_sample_value("outbox_breaker_open") == 0


@pytest.fixture
def working(worker_without_store: Worker) -> Worker:
    """Its breaker is closed."""
    worker_without_store._context.breaker.saw([ACKED])
    return worker_without_store


def broker_of(worker: Worker) -> Broker:
    broker = worker._context.publisher
    assert isinstance(broker, Broker)
    broker.answer = lambda _: OUTAGE
    return broker


def test_a_batch_that_did_not_arrive_while_the_broker_answers_is_the_destinations_matter(
    working: Worker,
) -> None:
    broker_of(working)
    finished = working._publish([make_claim(), make_claim()])
    assert working._context.breaker.state is BreakerState.CLOSED
    assert {v.error.kind for v in finished.failed if v.error} == {ErrorClass.DESTINATION}
    assert all(v.refund for v in finished.failed)
    assert "broker" not in working._context.health.troubles


def test_a_batch_that_did_not_arrive_while_no_broker_answers_opens_the_breaker_at_once(
    working: Worker,
) -> None:
    broker_of(working).fails_probes = "connection refused"
    finished = working._publish([make_claim(), make_claim()])
    assert working._context.breaker.state is BreakerState.OPEN
    assert {v.error.kind for v in finished.failed if v.error} == {ErrorClass.OUTAGE}
    assert working._context.health.troubles["broker"] == "connection refused"
    assert working._context.metrics.registry.get_sample_value("outbox_breaker_open") == 1


def test_a_worker_that_is_stopping_does_not_wait_for_a_probe(working: Worker) -> None:
    broker_of(working).fails_probes = "asked all the same"
    working._context.stopping.set()
    finished = working._publish([make_claim()])
    assert working._context.breaker.state is BreakerState.CLOSED
    assert [v.refund for v in finished.failed] == [True]


def test_chores_are_not_later_than_half_a_minute_with_the_longest_lease(
    worker_without_store: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = worker_without_store._context
    context.settings = relay_settings(lease="30m")
    keeper = Keeper(context)
    keeper._due["chores"] = 1.0
    assert keeper._nap() <= 30
