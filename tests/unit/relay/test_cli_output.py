"""Plain text for people, JSON for programs."""

import json
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from outbox_core.model.lifecycle import State
from outbox_relay.cli.output import age, payload_text, print_json, print_table, printable, shorten


def test_columns_are_aligned_and_empty_ones_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": 1, "b": None, "c": "long text"}, {"a": 22, "b": None, "c": ""}]
    print_table({"A": lambda r: r["a"], "B": lambda r: r["b"], "C": lambda r: r["c"]}, rows)
    assert capsys.readouterr().out == "A   C\n1   long text\n22\n"


def test_a_column_that_is_to_be_kept_stays(capsys: pytest.CaptureFixture[str]) -> None:
    print_table({"A": lambda r: r["a"]}, [], keep=("A",))
    assert capsys.readouterr().out == "A\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("line\nbreak", "line\\nbreak"),
        ("\x1b[31m", "\\x1b[31m"),
        ("grün", "grün"),
        (None, ""),
        (True, "yes"),
        ({"a": ["ü"]}, '{"a": ["ü"]}'),
        (datetime(2026, 1, 31, 9, tzinfo=timezone(timedelta(hours=1))), "2026-01-31 08:00:00"),
    ],
)
def test_a_cell_is_one_line_that_a_terminal_does_not_obey(value: object, shown: str) -> None:
    assert printable(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (45, "45s"), (600, "10m"), (7200, "2h"), (864000, "10d")]
)
def test_ages_are_short(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


def test_json_has_utc_times_and_plain_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(
        {
            "at": datetime(2026, 1, 31, 8, tzinfo=UTC),
            "id": UUID(int=1),
            "state": State.DEAD,
            "text": "grün",
        }
    )
    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-01-31T08:00:00Z",
        "id": "00000000-0000-0000-0000-000000000001",
        "state": "DEAD",
        "text": "grün",
    }


def test_half_a_character_is_printed_as_json_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "a\ud800b"})
    assert json.loads(capsys.readouterr().out) == {"text": "a\ud800b"}


@pytest.mark.parametrize(
    ("payload", "how", "shown"),
    [
        (b'{"a":1}', "auto", '{\n  "a": 1\n}'),
        (b"plain", "auto", "plain"),
        (b"\xff", "text", "�"),
        (b"a\x1bb", "text", "a\\x1bb"),
        (b"", "auto", ""),
        (b'"\\ud800\\u00fc"', "auto", '"\\ud800ü"'),
        (b"[" * 100_000, "auto", "[" * 100_000),
    ],
    ids=range(7),
)
def test_a_payload_is_shown_as_what_it_is(payload: bytes, how: str, shown: str) -> None:
    assert payload_text(payload, how) == shown


@pytest.mark.parametrize("payload", [b"\xff\xfeAB", b"\x00AB"])
def test_what_is_no_text_is_shown_in_hex(payload: bytes) -> None:
    assert payload.hex(" ") in payload_text(payload, "auto")


def test_long_texts_are_cut() -> None:
    assert shorten("abcdef", 4) == "abc…"
