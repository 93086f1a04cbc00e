"""What settings are made of: durations and times as people write them, and secrets."""

import os
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel

from outbox_core.errors import SettingsError

SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION = re.compile(r"[0-9]+d|([0-9]+(\.[0-9]+)?(ms|[smh]))+")
"""The syntax of Go, and so of Kubernetes; also days, which Go does not know: only by themselves."""
LONGEST_DURATION = timedelta(days=106_751)
"""292 years: the longest that Go, and so Kubernetes, can represent."""
LONGEST_DURATION_CHARS = 32


def parse_duration(value: object) -> object:
    """`500ms`, `30s`, `1h30m`; a number without a unit is refused."""
    if isinstance(value, timedelta):
        return value
    if (
        isinstance(value, str)
        and len(value) <= LONGEST_DURATION_CHARS
        and DURATION.fullmatch(value)
    ):
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", value)
        seconds = sum(float(n) * SECONDS_PER_UNIT[unit] for n, unit in parts)
        if seconds > LONGEST_DURATION.total_seconds():
            raise ValueError(f"{value!r} is too long: the limit is {LONGEST_DURATION.days} days")
        return timedelta(seconds=seconds)
    raise ValueError(f"{value!r} is not a duration: write for example 500ms, 30s, 5m, 1h30m or 7d")


def format_duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % SECONDS_PER_UNIT[unit] == 0:
            return f"{seconds / SECONDS_PER_UNIT[unit]:.0f}{unit}"
    return f"{seconds * 1000:.3f}".rstrip("0").rstrip(".") + "ms"


Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)
]

RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def parse_time(value: object) -> object:
    """RFC 3339 only, because that is what Kubernetes accepts."""
    if not isinstance(value, str):
        return value
    if not RFC3339.fullmatch(value):
        raise ValueError(f"{value!r} is not a time with a zone: write 2026-06-01T12:00:00Z")
    return datetime.fromisoformat(value)


Time = Annotated[AwareDatetime, BeforeValidator(parse_time)]


class Settings(BaseModel):
    """Base of all settings: camelCase in files, immutable; an unknown field is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class SecretRef(Settings):
    """Where a secret is: never the secret itself, so that a config file can be shown."""

    file: Path | None = None
    """A file that contains it, such as a mounted Secret. Trailing newlines are dropped."""
    env: str | None = None
    """An environment variable that contains it."""

    def read(self, what: str) -> str:
        if (self.file is None) == (self.env is None):
            raise SettingsError(f"{what}: set either file or env")
        if self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise SettingsError(f"{what}: the environment variable {self.env} is not set")
            if not _is_text(value):
                raise SettingsError(f"{what}: the environment variable {self.env} is not UTF-8")
            return value
        assert self.file is not None
        try:
            return self.file.read_text("utf-8").rstrip("\r\n")
        except OSError as error:
            raise SettingsError(f"{what}: cannot read {self.file}: {error.strerror}") from error
        except UnicodeDecodeError:  # not chained: it quotes the secret
            raise SettingsError(f"{what}: {self.file} is not UTF-8") from None


def _is_text(value: str) -> bool:
    """Bytes that are not UTF-8 are in an environment variable as halves of characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
