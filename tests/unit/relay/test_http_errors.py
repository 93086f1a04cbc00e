"""What an answer of an HTTP endpoint means."""

from datetime import UTC, datetime

import pytest

from outbox_core.model.attempt import Refused
from outbox_relay.publishers.http.errors import SHOWN_BODY_CHARS, Answer, after, outcome_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("37", 37),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60),
        ("Thu, 01 Jan 2026 00:01:00", 60),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0),
        ("9" * 5000, 999_999_999),
        ("-1", 0),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", 0),
        ("Mon, 01 Jan 2030 00:00:00 +99999999999999", 0),
        ("Sat, 01 Jan 0001 00:00:00 +2359", 0),
        ("Mon, 99 Jan 2030 00:00:00 GMT", 0),
    ],
)
def test_patience_is_a_number_or_a_date_of_the_calendar(value: str, seconds: float) -> None:
    assert after(Answer(429, value, b""), NOW) == seconds


@pytest.mark.parametrize(
    "secret",
    [b"amqp://user:hunter2-hunter2-hunter2@broker", b'{"token": "hunter2-hunter2-hunter2"}'],
)
def test_a_secret_is_hidden_wherever_a_refusal_is_cut(secret: bytes) -> None:
    for before in range(SHOWN_BODY_CHARS - len(secret), SHOWN_BODY_CHARS):
        outcome = outcome_of(Answer(422, None, b"x" * before + b" " + secret), NOW)
        assert isinstance(outcome, Refused)
        assert "hunt" not in outcome.error.text
