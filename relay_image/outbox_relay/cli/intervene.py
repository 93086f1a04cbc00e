"""`retry`, `reschedule`, `declare-dead`, `replay`, `skip`: interventions by hand, audited."""

import getpass
import os
import socket
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from outbox_core.store.intervene.interventions import Interventions, Result
from outbox_relay.cli.options import Source, as_duration, as_time, output_option, with_source
from outbox_relay.cli.output import note, print_json, printable

F = TypeVar("F", bound=Callable[..., Any])


def default_actor() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id often has no name
        user = f"uid{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def not_blank(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("give a reason: the audit records it", ctx, param)
    return value


def intervention(command: F) -> F:
    """Adds the arguments and options that all of them have."""
    for decorate in reversed(
        (
            click.argument(
                "events", metavar="EVENT_ID...", type=click.UUID, nargs=-1, required=True
            ),
            click.option(
                "--reason", required=True, callback=not_blank, help="Kept in the audit permanently."
            ),
            click.option(
                "--relay", metavar="NAME", help="Required if several relays have the event."
            ),
            click.option(
                "--actor",
                envvar="OUTBOX_ACTOR",
                default=default_actor,
                show_default="user@host",
                help="Who does it, for the audit.",
            ),
            click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing."),
            output_option,
        )
    ):
        command = decorate(command)
    return command


def carry_out(
    source: Source,
    act: Callable[[Interventions], list[Result]],
    actor: str,
    reason: str,
    dry_run: bool,
    output: str,
) -> None:
    with source.work("outbox-intervene") as conn:
        results = act(Interventions(conn, actor, reason, dry_run))
    if output == "json":
        print_json({"results": [r._asdict() for r in results]})
    else:
        for result in results:
            relay = f"  relay {result.relay}" if result.relay else ""
            click.echo(f"{result.status:9}  {result.event_id}{relay}: {printable(result.detail)}")
            for warning in result.warnings:
                note(f"           warning: {printable(warning)}")
    if any(r.status == "refused" for r in results):
        click.get_current_context().exit(1)


@click.command()
@with_source
@intervention
def retry(source: Source, events: tuple[UUID, ...], relay: str | None, **how: Any) -> None:
    """Make waiting events due now, instead of when their backoff ends."""
    carry_out(source, lambda by: by.retry(events, relay), **how)


@click.command()
@with_source
@intervention
@click.option("--at", callback=as_time, metavar="TIME", help="2026-01-31T08:00:00Z")
@click.option("--in", "delay", callback=as_duration, metavar="DURATION", help="30m, 2h, 1d")
def reschedule(
    source: Source,
    events: tuple[UUID, ...],
    relay: str | None,
    at: datetime | None,
    delay: timedelta | None,
    **how: Any,
) -> None:
    """Make pending events due at another time; with ordering their keys wait for them."""
    if (at is None) == (delay is None):
        raise click.UsageError("when? Set either --at or --in")
    carry_out(source, lambda by: by.reschedule(events, at, delay, relay), **how)


@click.command("declare-dead")
@with_source
@intervention
@click.option("--hold-key", is_flag=True, help="Ordered relays: the event's key waits for it.")
def declare_dead(
    source: Source, events: tuple[UUID, ...], relay: str | None, hold_key: bool, **how: Any
) -> None:
    """Never publish pending events; replay can undo it.

    With ordering the key continues without them, even under onDead: Block, because a person has
    decided; --hold-key makes it wait.
    """
    carry_out(source, lambda by: by.declare_dead(events, relay, hold_key), **how)


@click.command()
@with_source
@intervention
@click.option(
    "--keep-attempts", is_flag=True, help="Keep the count of attempts and the last error."
)
def replay(
    source: Source, events: tuple[UUID, ...], relay: str | None, keep_attempts: bool, **how: Any
) -> None:
    """Publish dead or published events again, with a fresh budget of attempts.

    Consumers may get them a second time, and after later events of their key that are already
    published: --dry-run shows what to expect.
    """
    carry_out(source, lambda by: by.replay(events, relay, keep_attempts), **how)


@click.command()
@with_source
@intervention
def skip(source: Source, events: tuple[UUID, ...], relay: str | None, **how: Any) -> None:
    """Leave dead events dead, and let the keys that they block continue without them."""
    carry_out(source, lambda by: by.skip(events, relay), **how)
