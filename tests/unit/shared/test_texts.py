"""A text of any length fits, and is cut between characters."""

import pytest

from fixtures.made_seen import NOW
from outbox_operator.shared.conditions import as_conditions
from outbox_operator.shared.texts import CONDITION_CHARACTERS, EVENT_BYTES, event_text


@pytest.mark.parametrize("letter", ["a", "ü", "€", "🐟"])
@pytest.mark.parametrize("more", [0, 1, 100_000])
def test_a_condition_takes_a_message_of_any_length(letter: str, more: int) -> None:
    text = letter * (CONDITION_CHARACTERS + more)
    (made,) = as_conditions([("Ready", "False", "NoReport", text)], (), 1, NOW)
    assert len(made.message) == CONDITION_CHARACTERS
    assert made.message.endswith("…" if more else letter)


@pytest.mark.parametrize("letter", ["a", "ü", "€", "🐟"])
@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_an_event_has_whole_characters_only(letter: str, before: str) -> None:
    text = event_text(before + letter * (EVENT_BYTES + 1))
    assert EVENT_BYTES - len(letter.encode()) < len(text.encode()) <= EVENT_BYTES
    assert set(text) == {*before, letter, "…"}


def test_a_message_that_fits_is_left_as_it_is() -> None:
    exactly = "ü" * (EVENT_BYTES // 2)
    assert event_text(exactly) == exactly
    assert event_text("half of a pair: \ud800") == "half of a pair: ?"
