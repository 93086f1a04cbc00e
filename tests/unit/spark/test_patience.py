"""Asking a store that is away again, and not for ever."""

from collections.abc import Callable
from itertools import count

import pytest

from outbox_core.contract.settings import Store
from outbox_core.errors import RightMissing, SettingsError, StoreUnavailable, WrongPassword
from outbox_core.store.connection import Connection
from outbox_spark import patience
from outbox_spark.patience import LONGEST, PATIENCE, Patient


class Opened:
    """What `connect` gave; nothing here asks the database itself."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Opened]:
    made: list[Opened] = []

    def connect(*_: object) -> Opened:
        made.append(Opened())
        return made[-1]

    monkeypatch.setattr(patience, "connect", connect)
    monkeypatch.setenv("OUTBOX_DSN", "unused")
    return made


def patient(
    clock: Clock, told: list[str] | None = None, answers: list[int] | None = None
) -> Patient:
    return Patient(
        Store(),
        "test",
        on_trouble=lambda error: (told if told is not None else []).append(str(error)),
        on_answer=lambda: (answers if answers is not None else []).append(1),
        clock=lambda: clock.now,
        wait=clock.wait,
    )


def away(failures: int, error: Exception) -> Callable[[Connection], int]:
    """A question that is answered only after so many failures."""
    asked = count(1)

    def question(conn: Connection) -> int:
        if next(asked) <= failures:
            raise error
        return 42

    return question


def test_an_answer_is_handed_on_and_the_connection_kept(clock: Clock, opened: list[Opened]) -> None:
    with patient(clock) as store:
        assert store.ask(away(0, ValueError())) == 42
        assert store.ask(away(0, ValueError())) == 42
        assert len(opened) == 1
        assert not opened[0].closed
    assert opened[0].closed


def test_a_store_that_is_away_is_asked_again_over_a_new_connection_after_growing_pauses(
    clock: Clock, opened: list[Opened]
) -> None:
    told: list[str] = []
    question = away(3, StoreUnavailable("no answer"))
    assert patient(clock, told).ask(question) == 42
    assert clock.waits == [0.2, 0.4, 0.8]
    assert told == ["no answer"] * 3
    assert [conn.closed for conn in opened] == [True, True, True, False]


def test_the_pauses_do_not_grow_for_ever_and_patience_ends(
    clock: Clock, opened: list[Opened]
) -> None:
    with pytest.raises(StoreUnavailable):
        patient(clock).ask(away(10_000, StoreUnavailable("no answer")))
    assert max(clock.waits) == LONGEST
    assert PATIENCE <= clock.now < PATIENCE + LONGEST


def test_patience_begins_anew_with_every_question(clock: Clock, opened: list[Opened]) -> None:
    store = patient(clock)
    for _ in range(3):
        assert store.ask(away(50, StoreUnavailable("no answer"))) == 42
    assert clock.now > PATIENCE


@pytest.mark.parametrize(
    "error", [WrongPassword("no"), RightMissing("no"), SettingsError("no"), ValueError("no")]
)
def test_what_waiting_does_not_mend_is_told_at_once(
    clock: Clock, opened: list[Opened], error: Exception
) -> None:
    with pytest.raises(type(error)):
        patient(clock).ask(away(1, error))
    assert clock.waits == []


def test_an_answer_is_told_so_that_readiness_comes_back(clock: Clock, opened: list[Opened]) -> None:
    answers: list[int] = []
    patient(clock, answers=answers).ask(away(2, StoreUnavailable("no answer")))
    assert answers == [1]
