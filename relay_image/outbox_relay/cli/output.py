"""Output: one JSON document, or plain aligned text for people and grep. No colours, no boxes."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import click

from outbox_core.store.reading import FOREVER, LONG_AGO, Row

Columns = Mapping[str, Callable[[Row], object]]


def print_json(document: object) -> None:
    click.echo(json_text(document))


def json_text(document: object) -> str:
    """Legible. Only half a character, which a payload or a broker's answer may contain, stays
    escaped: no terminal and no file accepts it."""
    text = json.dumps(document, default=jsonable, indent=2, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()


def jsonable(value: object) -> object:
    """Values that the json module cannot encode."""
    match value:
        case datetime():
            return iso(value)
        case UUID():
            return str(value)
        case Enum():
            return value.value
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def iso(value: datetime) -> str:
    if value in (FOREVER, LONG_AGO):
        return "infinity" if value == FOREVER else "-infinity"
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def time_cell(value: datetime | None) -> str:
    if value is None:
        return ""
    return (
        iso(value) if value in (FOREVER, LONG_AGO) else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    )


def age(seconds: float) -> str:
    """`45s`, `12m`, `3h`, `5d`: one unit is precise enough."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def age_cell(value: datetime | None, now: datetime) -> str:
    return age((now - value).total_seconds()) if value and value != FOREVER else ""


def printable(value: object) -> str:
    """One line, without control characters: texts come from brokers and producers."""
    match value:
        case None:
            return ""
        case bool():
            text = "yes" if value else "no"
        case datetime():
            text = time_cell(value)
        case dict() | list():
            text = json.dumps(value, ensure_ascii=False)
        case _:
            text = str(value)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def print_table(columns: Columns, rows: Iterable[Row], keep: Sequence[str] = ()) -> None:
    """Empty columns are left out, except those in `keep`."""
    cells = [[printable(cell(row)) for cell in columns.values()] for row in rows]
    used = [n for n, name in enumerate(columns) if name in keep or any(line[n] for line in cells)]
    lines = [list(columns), *cells]
    widths = {n: max(len(line[n]) for line in lines) for n in used}
    for line in lines:
        click.echo("  ".join(line[n].ljust(widths[n]) for n in used).rstrip())


def print_fields(fields: Mapping[str, object], indent: str = "") -> None:
    shown = {name: printable(value) for name, value in fields.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, text in shown.items():
        click.echo(f"{indent}{name.ljust(width)}  {text}")


def note(text: str) -> None:
    """For people: to standard error, so that it does not end up in a pipe."""
    click.echo(text, err=True)


def payload_value(payload: bytes, how: str) -> dict[str, Any]:
    """For JSON: the payload and its encoding."""
    if how == "none":
        return {}
    if how == "json":
        try:
            return {"payload": json.loads(payload), "payload_encoding": "json"}
        except (ValueError, RecursionError):
            pass  # as text or base64, then
    if how != "hex":
        try:
            return {"payload": payload.decode(), "payload_encoding": "utf-8"}
        except UnicodeDecodeError:
            encoded = base64.b64encode(payload).decode()
            return {"payload": encoded, "payload_encoding": "base64"}
    return {"payload": payload.hex(), "payload_encoding": "hex"}


def payload_text(payload: bytes, how: str) -> str:
    """For people. auto: as JSON, text or hex, whichever fits first."""
    if how in ("auto", "json"):
        try:
            return json_text(json.loads(payload))
        except (ValueError, RecursionError):
            if how == "json":
                note("the payload is not JSON")
    try:
        text = payload.decode(errors="replace" if how == "text" else "strict")
    except UnicodeDecodeError:
        return hex_lines(payload)
    if how == "hex" or (how == "auto" and "\x00" in text):
        return hex_lines(payload)
    return "\n".join(printable(line) for line in text.splitlines())


def hex_lines(payload: bytes) -> str:
    return "\n".join(
        f"{at:08x}  {payload[at : at + 16].hex(' '):47}  "
        + "".join(chr(b) if 32 <= b < 127 else "." for b in payload[at : at + 16])
        for at in range(0, len(payload), 16)
    )
