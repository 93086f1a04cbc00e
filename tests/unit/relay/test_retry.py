"""The judgement: which outcome leads to which state, and when it is tried again."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fixtures.made_settings import retry_policy
from fixtures.moments import moment_of, with_moments
from outbox_core.model.attempt import (
    LONGEST_RETRY_AFTER_SECONDS,
    Error,
    ErrorClass,
    Refused,
    Unsent,
    without_secrets,
)
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import Hold, State
from outbox_core.model.retry import Override, judge, judge_crash

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def claim(**fields: Any) -> Claim:
    values: dict[str, Any] = dict.fromkeys(Claim._fields)
    values |= {
        "seq": 1, "token": 2, "claimed_at": NOW, "created_at": NOW, "attempts": 1,
        "attempts_base": 0, "crashes": 0, "lane": -1, "event_id": "e", "event_type": "a.b",
        "payload": b"",
    }  # fmt: skip
    return Claim(**with_moments({**values, **fields}))


def refused(kind: ErrorClass = ErrorClass.TRANSIENT) -> Refused:
    return Refused(Error.of(kind, "CODE", "text"))


def test_ce_15_delays_double_without_jitter() -> None:
    policy = retry_policy(jitter=0.0)
    assert [policy.delay("a.b", n, 0.5) for n in (1, 2, 3, 4)] == [2, 4, 8, 16]


def test_oo_34_delays_grow_to_the_cap_and_jitter_stays_within_bounds() -> None:
    policy = retry_policy(jitter=0.2)
    for n in range(1, 80):
        exact = min(300.0, 2.0 * 2.0 ** (n - 1))
        for chance in (0.0, 0.3, 0.999):
            delay = policy.delay("a.b", n, chance)
            assert 0 < delay <= 300.0
            assert exact * 0.8 - 1e-6 <= delay <= exact * 1.2 + 1e-6


def test_oo_04_a_delay_is_never_zero() -> None:
    policy = retry_policy(base_delay=timedelta(0), jitter=1.0)
    assert policy.delay("a.b", 1, 0.0) > 0


@pytest.mark.parametrize(
    ("event_type", "attempts", "delay"),
    [("email.send", 4, 2), ("api.call", 6, 1), ("sor.write", 2, 5), ("order.paid", 10, 2)],
)
def test_ce_16_overrides_change_count_and_delay(event_type: str, attempts: int, delay: int) -> None:
    policy = retry_policy(
        jitter=0.0,
        overrides=(
            Override("email.*", 4, timedelta(seconds=2)),
            Override("api.*", 6, timedelta(seconds=1)),
            Override("sor.*", 2, timedelta(seconds=5)),
        ),
    )
    assert policy.delay(event_type, 1, 0.5) == delay
    last = judge(refused(), claim(event_type=event_type, attempts=attempts), policy, 0.5)
    before = judge(refused(), claim(event_type=event_type, attempts=attempts - 1), policy, 0.5)
    assert (before.state, last.state) == (State.PENDING, State.DEAD)


def test_ce_17_an_events_own_limit_wins() -> None:
    policy = retry_policy(overrides=(Override("a.*", 9),))
    verdict = judge(refused(), claim(attempts=2, max_attempts=2), policy, 0.5)
    assert verdict.state is State.DEAD


def test_oo_33_a_permanent_error_is_dead_at_once_and_a_transient_one_is_not() -> None:
    assert judge(refused(ErrorClass.EVENT), claim(), retry_policy(), 0.5).state is State.DEAD
    verdict = judge(refused(), claim(), retry_policy(), 0.5)
    assert (verdict.state, verdict.hold, verdict.refund) == (State.PENDING, Hold.TIME, False)


def test_an_outage_never_kills_and_costs_nothing() -> None:
    worn = claim(attempts=10_000, created_at=NOW - timedelta(days=400))
    policy = retry_policy(max_age=timedelta(days=1))
    verdict = judge(refused(ErrorClass.OUTAGE), worn, policy, 0.5)
    assert (verdict.state, verdict.refund, verdict.delay) == (State.PENDING, True, 300.0)


@pytest.mark.parametrize("attempts", [1, 3, 10_000])
def test_a_sick_destination_never_kills_and_costs_nothing(attempts: int) -> None:
    worn = claim(attempts=attempts, created_at=NOW - timedelta(days=400))
    policy = retry_policy(max_age=timedelta(days=1))
    verdict = judge(refused(ErrorClass.DESTINATION), worn, policy, 0.5)
    assert (verdict.state, verdict.refund) == (State.PENDING, True)
    assert verdict.delay == min(60.0, 2.0**attempts if attempts < 10 else 60.0)


def test_what_is_parked_comes_back_later_each_time_and_not_before_its_destination_is_tried() -> (
    None
):
    parked = Unsent("parked", after=5.0)
    delays = [judge(parked, claim(attempts=n), retry_policy(), 0.5).delay for n in (1, 2, 3, 4, 99)]
    assert delays == [5.5, 5.5, 8.0, 16.0, 60.0]
    for chance in (0.0, 0.3, 0.999):
        verdict = judge(parked, claim(), retry_policy(), chance)
        assert verdict.delay >= 5.0
        assert (verdict.state, verdict.hold, verdict.refund, verdict.error) == (
            State.PENDING, Hold.TIME, True, None,
        )  # fmt: skip


@pytest.mark.parametrize("kind", [ErrorClass.TRANSIENT, ErrorClass.OUTAGE, ErrorClass.DESTINATION])
def test_who_asks_for_patience_is_not_tried_before(kind: ErrorClass) -> None:
    policy = retry_policy(jitter=0.2)

    def delay(after: float, chance: float = 0.0, attempts: int = 1) -> float:
        asked = refused(kind)._replace(after=after)
        return judge(asked, claim(attempts=attempts), policy, chance).delay

    assert delay(30.0) == 30.0
    assert 30.0 < delay(30.0, chance=0.9) <= 36.0  # those who wait do not all come at once
    assert delay(0.5, attempts=4) == judge(refused(kind), claim(attempts=4), policy, 0.0).delay
    assert delay(10.0**9) == LONGEST_RETRY_AFTER_SECONDS


def test_patience_does_not_bring_back_what_is_dead() -> None:
    asked = refused(ErrorClass.EVENT)._replace(after=30.0)
    assert judge(asked, claim(), retry_policy(), 0.5).state is State.DEAD
    spent = refused()._replace(after=30.0)
    assert judge(spent, claim(attempts=10), retry_policy(), 0.5).state is State.DEAD


def test_ek_19_what_was_brought_back_is_as_old_as_that() -> None:
    policy = retry_policy(max_age=timedelta(days=1))
    old = claim(created_at=NOW - timedelta(days=400))
    assert judge(refused(), old, policy, 0.5).state is State.DEAD
    back = old._replace(age_from=moment_of(NOW - timedelta(hours=23)))
    assert judge(refused(), back, policy, 0.5).state is State.PENDING
    late = old._replace(age_from=moment_of(NOW - timedelta(hours=25)))
    assert judge(refused(), late, policy, 0.5).state is State.DEAD


def test_what_was_not_sent_is_given_back_for_nothing() -> None:
    verdict = judge(Unsent("behind"), claim(attempts=99), retry_policy(), 0.5)
    assert (verdict.state, verdict.refund, verdict.delay, verdict.error) == (
        State.PENDING, True, 0.0, None,
    )  # fmt: skip


def test_tc_28_the_budget_is_counted_from_the_base() -> None:
    replayed = claim(attempts=25, attempts_base=24)
    assert judge(refused(), replayed, retry_policy(max_attempts=2), 0.5).state is State.PENDING
    again = claim(attempts=26, attempts_base=24)
    assert judge(refused(), again, retry_policy(max_attempts=2), 0.5).state is State.DEAD


def test_in_a_crash_the_crowd_is_not_blamed_and_the_lonely_one_is() -> None:
    policy = retry_policy(max_crashes=3)
    verdicts = [judge_crash(claim(crashes=n, attempts=n + 1), policy, 0.5) for n in range(5)]
    assert [v.state for v in verdicts] == [State.PENDING] * 4 + [State.DEAD]
    assert [v.refund for v in verdicts[:4]] == [True, True, False, False]
    assert all(v.hold is Hold.SUSPECT for v in verdicts[:4])


@pytest.mark.parametrize(
    "text",
    [
        "sasl.password=hunter2 rejected",
        "postgresql://user:hunter2@db/x is down",
        'authorization: "hunter2"',
        "PASSWORD = 'hunter2'",
        "api_key: hunter2",
        '{"password": "hunter2',
        r'{"password": "a\"hunter2"}',
        r"{'password': 'a\'hunter2'}",
        r"the request was {\"password\": \"hunter2\"}",
        "Authorization: Token hunter2",
    ],
)
def test_oo_27_errors_carry_no_secret_and_are_bounded(text: str) -> None:
    assert "hunter2" not in without_secrets(text)
    error = Error.of(ErrorClass.TRANSIENT, "C" * 300, text + "x" * 5000)
    assert "hunter2" not in error.text
    assert len(error.text) <= 500
    assert len(error.code) <= 100


def test_a_password_in_a_url_is_hidden_wherever_the_url_stands() -> None:
    text = "from http://a:80/x to amqp://u:hunter2@b and sftp://u:hunter2@c, as u://:@x told y@z"
    assert without_secrets(text) == (
        "from http://a:80/x to amqp://u:***@b and sftp://u:***@c, as u://:@x told y@z"
    )


@pytest.mark.parametrize(
    "word", ["://:", "://u:p", "password=", "password ", "'token': \"", 'secret="\\']
)
def test_what_to_hide_is_found_in_one_pass_over_a_text_of_any_size(word: str) -> None:
    """Where it is looked for again from each beginning, these take from half a minute to hours."""
    began = time.monotonic()
    without_secrets(word * (200_000 // len(word)))
    assert time.monotonic() - began < 10


def test_of_a_huge_text_only_the_beginning_is_looked_at() -> None:
    """Some servers answer with megabytes, and each of them is one error."""
    text = "a b " * 10_000_000
    began = time.monotonic()
    assert Error.of(ErrorClass.TRANSIENT, "HUGE", text).text.startswith("a b a b ")
    assert time.monotonic() - began < 2.5


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=ascii)
def test_an_error_can_be_stored_whatever_the_broker_says(text: str) -> None:
    """As JSON in PostgreSQL, which takes neither."""
    error = Error.of(ErrorClass.TRANSIENT, text, text)
    for found in (error.code, error.text):
        assert found.encode().decode() in ("ab", "a?b")
