"""Retries while a store is unavailable, and when they end."""

from collections.abc import Callable
from itertools import count

import pytest

from outbox_core.contract.settings import StoreSettings
from outbox_core.errors import PermissionDenied, SettingsError, StoreUnavailable, WrongPassword
from outbox_core.store.connection import Connection
from outbox_spark import retrying_store
from outbox_spark.retrying_store import (
    LONGEST_PAUSE_SECONDS,
    PATIENCE_SECONDS,
    RetryingStore,
)


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

    monkeypatch.setattr(retrying_store, "connect", connect)
    monkeypatch.setenv("OUTBOX_DSN", "unused")
    return made


def retrying(
    clock: Clock, troubles: list[str] | None = None, answers: list[int] | None = None
) -> RetryingStore:
    return RetryingStore(
        StoreSettings(),
        "test",
        on_trouble=lambda error: (troubles if troubles is not None else []).append(str(error)),
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
    with retrying(clock) as store:
        assert store.ask(away(0, ValueError())) == 42
        assert store.ask(away(0, ValueError())) == 42
        assert len(opened) == 1
        assert not opened[0].closed
    assert opened[0].closed


def test_a_store_that_is_away_is_asked_again_over_a_new_connection_after_growing_pauses(
    clock: Clock, opened: list[Opened]
) -> None:
    troubles: list[str] = []
    question = away(3, StoreUnavailable("no answer"))
    assert retrying(clock, troubles).ask(question) == 42
    assert clock.waits == [0.2, 0.4, 0.8]
    assert troubles == ["no answer"] * 3
    assert [conn.closed for conn in opened] == [True, True, True, False]


def test_the_pauses_do_not_grow_for_ever_and_patience_ends(
    clock: Clock, opened: list[Opened]
) -> None:
    with pytest.raises(StoreUnavailable):
        retrying(clock).ask(away(10_000, StoreUnavailable("no answer")))
    assert max(clock.waits) == LONGEST_PAUSE_SECONDS
    assert PATIENCE_SECONDS <= clock.now < PATIENCE_SECONDS + LONGEST_PAUSE_SECONDS


def test_patience_begins_again_with_every_question(clock: Clock, opened: list[Opened]) -> None:
    store = retrying(clock)
    for _ in range(3):
        assert store.ask(away(50, StoreUnavailable("no answer"))) == 42
    assert clock.now > PATIENCE_SECONDS


@pytest.mark.parametrize(
    "error", [WrongPassword("no"), PermissionDenied("no"), SettingsError("no"), ValueError("no")]
)
def test_what_waiting_does_not_cure_is_raised_at_once(
    clock: Clock, opened: list[Opened], error: Exception
) -> None:
    with pytest.raises(type(error)):
        retrying(clock).ask(away(1, error))
    assert clock.waits == []


def test_an_answer_is_reported_so_that_readiness_comes_back(
    clock: Clock, opened: list[Opened]
) -> None:
    answers: list[int] = []
    retrying(clock, answers=answers).ask(away(2, StoreUnavailable("no answer")))
    assert answers == [1]
