"""The termination message of a replay's driver: valid however much there is to report."""

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.contract.replay import TERMINATION_BYTES, Preview, ReplayReport, TypeCount
from outbox_core.observe import termination


def report(types: int = 0, samples: int = 0, name: int = 20, message: str = "done") -> ReplayReport:
    return ReplayReport(
        version="0.1.0",
        id="shop/again@01234567",
        stage="Succeeded",
        message=message,
        observed_at=datetime(2026, 6, 1, tzinfo=UTC),
        preview=Preview(
            by_type=tuple(
                TypeCount(event_type=f"{n:03}".ljust(name, "x"), state="DEAD", count=n)
                for n in range(types)
            ),
            samples=tuple(str(UUID(int=n)) for n in range(samples)),
        ),
    )


def kept(text: str) -> str:
    """What Kubernetes keeps: the end."""
    return text.encode()[-TERMINATION_BYTES:].decode(errors="ignore")


def left(words: ReplayReport, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ReplayReport:
    file = folder / "termination-log"
    file.write_text("")
    monkeypatch.setenv("OUTBOX_TERMINATION_LOG", str(file))
    termination.write(words.termination_message())
    read = ReplayReport.read(kept(file.read_text()))
    assert read is not None
    return read


def test_what_just_fits_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = len(report().termination_message())
    for room in range(-2, 3):  # around the last byte, which is the line's end
        words = report(message="m" * (TERMINATION_BYTES - short + 3 + room))
        read = left(words, tmp_path, monkeypatch)
        assert read.stage == "Succeeded"
        if room < 0:
            assert read == words


def test_types_and_samples_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = left(report(types=100, samples=20, name=60), tmp_path, monkeypatch)
    assert read.preview is not None
    shown = len(read.preview.by_type)
    assert 20 < shown < 100
    assert read.preview.types_left_out == 100 - shown
    assert [t.count for t in read.preview.by_type] == list(range(shown))  # the first stay
    assert 0 < len(read.preview.samples) < 20


def test_where_all_types_fit_none_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = left(report(types=5, samples=20), tmp_path, monkeypatch)
    assert read.preview is not None
    assert read.preview.types_left_out is None


@given(
    types=st.integers(0, 100),
    samples=st.integers(0, 20),
    name=st.integers(3, 5000),
    message=st.text(max_size=6000),
)
def test_however_much_there_is_to_report_it_fits_and_can_be_read(
    types: int, samples: int, name: int, message: str
) -> None:
    text = report(types, samples, name, message).termination_message()
    assert len(text.encode()) < TERMINATION_BYTES
    assert ReplayReport.read(text) is not None


def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, short = report(message="long " * 100), report()
    left(long, tmp_path, monkeypatch)

    def killed(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(termination.os, "ftruncate", killed)  # type: ignore[attr-defined]
    with pytest.raises(SystemExit):
        termination.write(short.termination_message())
    assert ReplayReport.read((tmp_path / "termination-log").read_text()) == short
