"""Told to stop, also before anybody listened."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox_spark import stopping


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_heard_once_we_listen() -> None:
    stopping.listen()
    with pytest.raises(stopping.StopRequested):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # a second one does not cut off the termination message


def test_one_that_came_before_is_heard_when_we_begin_to_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "stop-requested"
    monkeypatch.setenv(stopping.STOP_FILE_VARIABLE, str(note))
    stopping.listen()
    note.touch()
    with pytest.raises(stopping.StopRequested):
        stopping.raise_if_requested()
    with pytest.raises(stopping.StopRequested):
        stopping.listen()


def test_without_a_stop_file_no_stop_was_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stopping.STOP_FILE_VARIABLE, raising=False)
    stopping.raise_if_requested()
