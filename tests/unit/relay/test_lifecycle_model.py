"""The lifecycle as the model has it: the same as the database's, and all that a verdict uses."""

import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.made_settings import retry_policy
from fixtures.moments import with_moments
from outbox_core.model.attempt import Acked, Error, ErrorClass, Refused, Unsent, Verdict
from outbox_core.model.event import Claim
from outbox_core.model.lifecycle import TERMINAL, TRANSITIONS, Hold, State
from outbox_core.model.retry import Retry, judge, judge_crash

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = files("outbox_core.schema")


def schema(name: str) -> str:
    return (SCHEMA / name).read_text()


@pytest.mark.parametrize(("enum", "name"), [(State, "state"), (Hold, "hold")])
def test_em_11_the_database_knows_the_same_words(enum: type[State | Hold], name: str) -> None:
    declared = re.search(
        rf"CREATE TYPE outbox\.{name} AS ENUM \(([^)]*)\)", schema("migrations/0001_baseline.sql")
    )
    assert declared is not None
    assert re.findall(r"'(\w+)'", declared[1]) == [member.value for member in enum]


def test_lc_01_the_database_names_the_same_moves_when_it_refuses_another() -> None:
    hint = re.search(r"HINT = '(PENDING > [^']*)'", schema("functions/lifecycle.sql"))
    assert hint is not None
    moves = set()
    for sentence in hint[1].split(";"):
        steps = [[State(word) for word in re.findall(r"[A-Z]{2,}", s)] for s in sentence.split(">")]
        moves |= {(a, b) for x, y in pairwise(steps) for a in x for b in y}
    assert moves == TRANSITIONS


def test_lc_27_a_terminal_state_is_left_by_replay_only() -> None:
    assert {(a, b) for a, b in TRANSITIONS if a in TERMINAL} == {
        (State.PUBLISHED, State.PENDING), (State.DEAD, State.PENDING),
    }  # fmt: skip


def test_lc_21_only_what_is_pending_can_be_claimed() -> None:
    assert {a for a, b in TRANSITIONS if b is State.CLAIMED} == {State.PENDING}


def claims() -> st.SearchStrategy[Claim]:
    def make(attempts: int, base: int, crashes: int, age: int, limit: int | None) -> Claim:
        values: dict[str, Any] = dict.fromkeys(Claim._fields)
        values |= {
            "seq": 1, "token": 2, "claimed_at": NOW, "created_at": NOW - timedelta(seconds=age),
            "attempts": base + attempts, "attempts_base": base, "crashes": crashes, "lane": -1,
            "event_id": "e", "event_type": "a.b", "payload": b"", "max_attempts": limit,
        }  # fmt: skip
        return Claim(**with_moments(values))

    return st.builds(
        make, st.integers(1, 100), st.integers(0, 100), st.integers(0, 10),
        st.integers(0, 10**7), st.none() | st.integers(1, 20),
    )  # fmt: skip


POLICIES = st.builds(
    retry_policy,
    max_attempts=st.integers(1, 20),
    jitter=st.floats(0, 1),
    max_age=st.none() | st.just(timedelta(days=1)),
    max_crashes=st.integers(1, 5),
)
CHANCE = st.floats(0, 1, exclude_max=True)
OUTCOMES = st.one_of(
    st.builds(lambda kind: Refused(Error.of(kind, "C", "text")), st.sampled_from(ErrorClass)),
    st.just(Unsent("stopped")),
)


def check(verdict: Verdict, claim: Claim) -> None:
    assert (verdict.seq, verdict.token) == (claim.seq, claim.token)
    assert (State.CLAIMED, verdict.state) in TRANSITIONS
    if verdict.state is State.DEAD:
        assert verdict.hold is Hold.NONE  # `model.ordering` may hold the key
        assert verdict.error is not None
    else:
        # What is in line keeps its place; what returns to it would be below the watermark.
        assert verdict.hold in (Hold.TIME, Hold.SUSPECT)
        assert 0 <= verdict.delay <= 300


@settings(deadline=None)
@given(claims(), OUTCOMES, POLICIES, CHANCE)
def test_lc_08_lc_15_oo_32_a_failed_attempt_ends_in_pending_or_dead(
    claim: Claim, outcome: Refused | Unsent, policy: Retry, chance: float
) -> None:
    verdict = judge(outcome, claim, policy, chance)
    check(verdict, claim)
    assert not verdict.crashed
    if isinstance(outcome, Refused):
        assert verdict.error is not None
        assert verdict.state is State.DEAD or verdict.delay > 0
    else:
        assert verdict.state is State.PENDING


@settings(deadline=None)
@given(claims(), POLICIES, CHANCE)
def test_tc_11_an_expired_lease_ends_in_pending_or_dead(
    claim: Claim, policy: Retry, chance: float
) -> None:
    verdict = judge_crash(claim, policy, chance)
    check(verdict, claim)
    assert verdict.crashed
    assert verdict.state is State.PENDING or claim.crashes >= 2


@settings(deadline=None)
@given(claims())
def test_what_was_acknowledged_is_not_judged(claim: Claim) -> None:
    with pytest.raises(AssertionError, match="needs no verdict"):
        judge(Acked("t[0]@1"), claim, retry_policy(), 0.5)
