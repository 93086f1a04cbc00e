"""The circuit breaker: an outage costs no event its budget, and ends by itself."""

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.made_settings import relay_settings
from fixtures.relays import Broker
from outbox_relay.errors import StoreUnavailable
from outbox_relay.model.attempt import Acked, Error, ErrorClass, Refused, Unsent
from outbox_relay.model.retry import Retry
from outbox_relay.observe.health import Health
from outbox_relay.observe.metrics import Metrics
from outbox_relay.worker.breaker import TRIAL, Breaker, BreakerState
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
UNSENT = Unsent("behind")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock)


@pytest.fixture
def opened(breaker: Breaker) -> Breaker:
    assert breaker.saw([OUTAGE, OUTAGE])
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
        [UNSENT, UNSENT],
        [],
    ],
)
def test_failures_of_events_do_not_open_it(
    breaker: Breaker, outcomes: list[Acked | Refused | Unsent]
) -> None:
    assert not breaker.saw(outcomes)
    assert breaker.state is BreakerState.CLOSED


def test_a_batch_that_failed_by_outage_alone_opens_it(breaker: Breaker) -> None:
    assert breaker.saw([OUTAGE, UNSENT, OUTAGE])
    assert breaker.state is BreakerState.OPEN
    assert breaker.reason == "CODE: nobody there"


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
    assert on_trial.allowance(2000) == TRIAL
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


def test_a_trial_that_fails_by_outage_opens_it_again(on_trial: Breaker, clock: Clock) -> None:
    on_trial.allowance(2000)
    assert on_trial.saw([OUTAGE])
    assert on_trial.state is BreakerState.OPEN
    assert on_trial.next_probe() == 1.0  # it answers probes and takes nothing: more slowly


def test_a_trial_that_found_nothing_to_send_is_made_again(on_trial: Breaker) -> None:
    on_trial.allowance(2000)
    on_trial.found_nothing()
    assert on_trial.allowance(2000) == TRIAL


def test_a_trial_in_which_nothing_was_tried_is_made_again(on_trial: Breaker) -> None:
    on_trial.allowance(2000)
    assert not on_trial.saw([UNSENT])
    assert on_trial.allowance(2000) == TRIAL


def test_after_success_the_next_outage_is_probed_soon_again(opened: Breaker, clock: Clock) -> None:
    for _ in range(6):
        opened.probed("still away")
    opened.probed(None)
    opened.saw([ACKED])
    opened.saw([OUTAGE])
    assert opened.next_probe() == 0.5


def test_a_probe_says_nothing_to_a_breaker_that_is_not_open(breaker: Breaker) -> None:
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
        policy=Retry(),
        crew=Crew(1, -1),
        breaker=on_trial,
        health=Health(),
        metrics=Metrics(),
    )
    yield Worker(0, context)
    context.stopping.set()


def test_a_trial_that_the_store_prevented_is_made_again(
    worker_without_store: Worker, on_trial: Breaker
) -> None:
    with pytest.raises(StoreUnavailable):
        worker_without_store._cycle()
    assert on_trial.allowance(2000) == TRIAL


def test_a_breaker_that_another_worker_closes_just_now_leaves_no_trouble(
    worker_without_store: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = worker_without_store._context
    context.breaker.saw([Refused(Error.of(ErrorClass.OUTAGE, "GONE", "no broker"))])
    say = context.health.trouble

    def after_another_closed_it(*args: Any) -> None:
        context.breaker.saw([Acked("t[0]@1")])
        context.health.well("broker")
        say(*args)

    monkeypatch.setattr(context.health, "trouble", after_another_closed_it)
    worker_without_store._wait_for_broker()
    assert "broker" not in context.health.troubles
    assert context.metrics.registry.get_sample_value("outbox_breaker_open") == 0


def test_chores_are_not_later_than_half_a_minute_with_the_longest_lease(
    worker_without_store: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = worker_without_store._context
    context.settings = relay_settings(lease="30m")
    keeper = Keeper(context)
    keeper._due["chores"] = 1.0
    assert keeper._nap() <= 30
