"""Logs: one line per occurrence, with its fields, and without anything secret."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from fixtures.made_settings import relay_settings, retry_policy
from fixtures.moments import with_moments
from fixtures.relays import Broker
from outbox_core.contract.settings import Log
from outbox_core.model.attempt import Error, ErrorClass, Refused, without_secrets
from outbox_core.model.event import Claim
from outbox_core.observe import logs
from outbox_core.observe.health import Health
from outbox_core.observe.logs import JsonFormatter, TextFormatter
from outbox_core.observe.metrics import RelayMetrics
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.context import Context
from outbox_relay.worker.pipeline import Worker
from outbox_relay.worker.polling import Crew

NOW = datetime(2026, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def record(
    message: str, *args: object, error: Exception | None = None, **extra: object
) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.getLogger("outbox.test").makeRecord(
        "outbox.test", logging.WARNING, "file.py", 1, message, args, info, extra=extra
    )
    made.created = NOW.timestamp()
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter().format(made)
    assert "\n" not in text
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def failure(text: str) -> Exception:
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        return error


# Lines --------------------------------------------------------------------------------------


def test_a_line_has_time_level_and_logger() -> None:
    assert as_json(record("%d events failed", 3)) == {
        "time": "2026-01-01T12:30:15.250+00:00",
        "level": "warning",
        "logger": "outbox.test",
        "message": "3 events failed",
    }


def test_what_was_given_as_extra_becomes_fields() -> None:
    line = as_json(record("dead", event="dead", event_ids=["a", "b"], port=8080))
    assert (line["event"], line["event_ids"], line["port"]) == ("dead", ["a", "b"], 8080)


def test_what_json_does_not_know_is_written_as_text() -> None:
    assert as_json(record("x", at=NOW, kind=ErrorClass.CRASH))["at"] == str(NOW)
    assert as_json(record("x", kind=ErrorClass.CRASH))["kind"] == "crash"


@pytest.mark.parametrize("text", ["two\nlines", 'a "quoted" one', "ünï → ✓", "\x00\x1b[31m"])
def test_odd_text_stays_one_line_and_comes_back_as_it_was(text: str) -> None:
    assert as_json(record("%s", text))["message"] == text


def test_an_exception_is_in_the_same_line() -> None:
    message = as_json(record("it failed", error=failure("why")))["message"]
    assert message.startswith("it failed\nTraceback (most recent call last):")
    assert message.endswith("RuntimeError: why")


def test_text_is_for_people_and_contains_the_same() -> None:
    text = TextFormatter().format(record("3 events failed", event="retry"))
    assert text == "2026-01-01T12:30:15.250+00:00 WARNING 3 events failed event=retry"


# Secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_neither_message_nor_exception_shows_a_secret(formatter: logging.Formatter) -> None:
    said = formatter.format(
        record(
            "no answer from %s",
            "postgresql://relay:hunter2@db/x",
            error=failure("connection failed: password=hunter2 host=db"),
        )
    )
    assert "hunter2" not in said
    assert "postgresql://relay:***@db/x" in said
    assert "host=db" in said


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_no_field_shows_a_secret(formatter: logging.Formatter) -> None:
    said = formatter.format(record("x", target="postgresql://relay:hunter2@db/x"))
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "hunter2"}',
        "{'sasl.password': 'hunter2'}",
        "Authorization: Bearer hunter2",
        "PGPASSWORD=hunter2",
        "client_secret=hunter2",
        "access_token: hunter2",
        "amqp://:hunter2@broker",
    ],
)
def test_oo_27_other_forms_of_a_secret_are_hidden_too(text: str) -> None:
    assert "hunter2" not in without_secrets(text)


# Setting up ---------------------------------------------------------------------------------


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_the_process_logs_json_to_standard_error(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up(Log())
    logging.getLogger("outbox.test").info("hello", extra={"event": "test"})
    logging.getLogger("outbox.test").debug("not at this level")
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert json.loads(line)["event"] == "test"


def test_set_up_twice_each_line_is_still_logged_once(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up(Log())
    logs.set_up(Log(format="text", level="debug"))
    logging.getLogger("outbox.test").debug("hello")
    assert [line.split()[1:] for line in capsys.readouterr().err.splitlines()] == [
        ["DEBUG", "hello"]
    ]


# What the worker logs -----------------------------------------------------------------------


def claim(**fields: Any) -> Claim:
    values: dict[str, Any] = dict.fromkeys(Claim._fields)
    values |= {
        "seq": 1, "token": 2, "claimed_at": NOW, "created_at": NOW, "attempts": 1,
        "attempts_base": 0, "crashes": 0, "lane": -1, "event_id": "e1", "event_type": "a.b",
        "payload": b"do not log me",
    }  # fmt: skip
    return Claim(**with_moments({**values, **fields}))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"traceparent_in_metadata": TRACE}, TRACE),
        ({"headers_json": json.dumps({"traceparent": TRACE})}, TRACE),
        ({"headers_json": json.dumps([["a", "1"], ["traceparent", TRACE]])}, TRACE),
        ({"headers_json": "{}", "traceparent_in_metadata": TRACE}, TRACE),
        (
            {
                "headers_json": json.dumps({"traceparent": TRACE}),
                "traceparent_in_metadata": "other",
            },
            TRACE,
        ),
        (
            {"headers_json": json.dumps({"x": "traceparent"}), "traceparent_in_metadata": TRACE},
            TRACE,
        ),
        ({"headers_json": json.dumps({"Traceparent": TRACE})}, TRACE),
    ],
)
def test_em_20_the_trace_is_the_applications_header_or_otherwise_in_the_metadata(
    fields: dict[str, Any], expected: str | None
) -> None:
    assert claim(**fields).traceparent == expected


def test_em_20_oo_63_a_failure_is_logged_with_events_and_traces_and_without_payloads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()
    broker.answer = lambda _: Refused(Error.of(ErrorClass.TRANSIENT, "NO_TOPIC", "no such topic"))
    context = Context(
        settings=relay_settings(),
        relay=1,
        publisher=broker,
        policy=retry_policy(),
        crew=Crew(1, -1),
        breaker=Breaker(lambda: 0.0),
        health=Health(),
        metrics=RelayMetrics(),
    )
    batch = [claim(traceparent_in_metadata=TRACE), claim(seq=2, event_id="e2")]
    Worker(0, context)._publish(batch)
    (made,) = [r for r in caplog.records if r.name == "outbox.relay"]
    line = as_json(made)
    assert line["message"].startswith("2 ")
    assert line["message"].endswith(": no such topic")
    assert (line["event"], line["error_class"]) == ("retry", "transient")
    assert line["error_code"] == "NO_TOPIC"
    assert line["event_ids"] == ["e1", "e2"]
    assert line["traceparents"] == [TRACE]
    assert "do not log me" not in JsonFormatter().format(made)
