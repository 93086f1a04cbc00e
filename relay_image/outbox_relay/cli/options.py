"""Options that several commands share, and how their values are parsed."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click

from outbox_core.contract.settings import RelaySettings, load_relay
from outbox_core.contract.values import parse_duration
from outbox_core.store.connection import Connection, connect
from outbox_core.store.reading import reading


@dataclass(frozen=True)
class Source:
    """Where the database is, and the relay's settings if there is a config file."""

    dsn: str
    settings: RelaySettings | None = None

    @contextmanager
    def snapshot(self, timeout: float, whole_tables: bool = False) -> Iterator[Connection]:
        """For inspection: one read-only snapshot."""
        conn = connect(self.dsn, "outbox-inspect")
        with conn, reading(conn, timeout, whole_tables):
            yield conn

    @contextmanager
    def work(self, application: str) -> Iterator[Connection]:
        with connect(self.dsn, application) as conn:
            yield conn


def source_of(dsn: str | None, config: Path | None) -> Source:
    settings = load_relay(config) if config else None
    if dsn is None and settings is not None:
        dsn = settings.store.dsn.read("store.dsn")
    if dsn is None:
        dsn = os.environ.get("OUTBOX_DSN")
    if not dsn:
        raise click.UsageError("which database? Set --dsn, --config or $OUTBOX_DSN")
    return Source(dsn, settings)


def with_source(command: Callable[..., None]) -> Callable[..., None]:
    """The command gets the options --dsn and --config as one `source`."""

    def wrapper(*args: Any, dsn: str | None, config: Path | None, **more: Any) -> None:
        command(*args, source=source_of(dsn, config), **more)

    add_config = click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="relay.yaml: its store.dsn is used.",
    )
    add_dsn = click.option(
        "--dsn",
        metavar="DSN",
        help="PostgreSQL connection string. Leave out the password: others see the command line.",
    )
    return add_dsn(add_config(update_wrapper(wrapper, command)))


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    required=True,
    help="The relay's settings, relay.yaml.",
)
output_option = click.option(
    *("-o", "--output"),
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json is one document, times in ISO 8601 UTC.",
)
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up if the database takes longer.",
)
relay_option = click.option("--relay", metavar="NAME", help="Only this relay's deliveries.")


def as_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    try:
        found = None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    assert found is None or isinstance(found, timedelta)
    return found


def as_time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} is not a time: write 2026-01-31T08:00:00Z (without a zone it is UTC)",
            *(ctx, param),
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def as_time_or_age(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> datetime | timedelta | None:
    """A time, or how long ago."""
    try:
        return as_duration(ctx, param, value)
    except click.BadParameter:
        pass
    try:
        return as_time(ctx, param, value)
    except click.BadParameter as error:
        text = f"{error.message}, or how long ago, such as 90m, 2h, 7d"
        raise click.BadParameter(text, ctx, param) from error


def moment(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """`2h` is two hours before the database's now."""
    return now - value if isinstance(value, timedelta) else value
