"""Logs: one line per occurrence, as JSON or text; no payloads, no secrets."""

import json
import logging
import sys
from datetime import UTC, datetime

from outbox_core.contract.settings import Log
from outbox_core.model.attempt import without_secrets

STANDARD_ATTRIBUTES = {
    *vars(logging.LogRecord("", 0, "", 0, "", None, None)),
    *("message", "asctime"),
}
"""Attributes that every record has: the others were passed as `extra`."""
MOST_LOGGED_IDS = 20
"""Event ids in one line."""


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """What was passed as `extra`."""
    return {k: redacted(v) for k, v in vars(record).items() if k not in STANDARD_ATTRIBUTES}


def redacted(value: object) -> object:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        return [redacted(v) for v in value]
    if isinstance(value, dict):
        return {k: redacted(v) for k, v in value.items()}
    return value if isinstance(value, int | float | None) else without_secrets(str(value))


def message_of(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    return without_secrets(text)


def timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = {"time": timestamp(record), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps(
            {**head, "message": message_of(record), **extra_fields(record)}, default=str
        )


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {k}={v}" for k, v in extra_fields(record).items())
        return f"{timestamp(record)} {record.levelname:7} {message_of(record)}{extra}"


def set_up(settings: Log) -> None:
    """Log to standard error, for the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
