"""`retire`: a relay that is no longer needed gets no events, and waiting ones are dropped."""

from datetime import timedelta

import click

from outbox_core.store.intervene.retirement import Retirement, Retiring
from outbox_relay.cli.intervene import default_actor, not_blank
from outbox_relay.cli.options import Source, as_duration, output_option, with_source
from outbox_relay.cli.output import note, print_json

NOTE_EVERY_EVENTS = 1_000_000


@click.command()
@with_source
@click.option("--relay", metavar="NAME", help="Which relay. Default: the one in --config.")
@click.option("--reason", required=True, callback=not_blank, help="Kept in the audit permanently.")
@click.option(
    "--actor",
    envvar="OUTBOX_ACTOR",
    default=default_actor,
    show_default="user@host",
    help="Who does it, for the audit.",
)
@click.option(
    "--wait",
    callback=as_duration,
    default="90s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for processes that drain, and for open transactions.",
)
@click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")
@output_option
@click.pass_context
def retire(
    ctx: click.Context,
    source: Source,
    relay: str | None,
    reason: str,
    actor: str,
    wait: timedelta,
    dry_run: bool,
    output: str,
) -> None:
    """End a relay permanently, and drop the events that wait for it.

    Stop its processes first. Its published and dead events stay on record. A relay that registers
    under the same name later starts afresh: with new events, and with those that no relay has
    subscribed to. Repeating it changes nothing.
    """
    if relay is None and source.settings is None:
        raise click.UsageError("which relay? Set --relay or --config")
    name = relay or (source.settings.name if source.settings else "")
    so_far = DroppedSoFar()
    with source.work("outbox-retire") as conn:
        retiring = Retiring(conn, name, actor, reason, so_far.dropped)
        result = retiring.plan() if dry_run else retiring.carry_out(wait)
    if output == "json":
        print_json(result._asdict())
    else:
        click.echo(f"{result.status:10}  relay {name}: {in_words(result)}")
    ctx.exit(1 if result.status == "unfinished" else 0)


def in_words(result: Retirement) -> str:
    if result.status == "unchanged":
        return f"nothing to do, {result.detail}"
    number = f"{'~' if result.approximate else ''}{result.dropped}"
    verb = "would be dropped" if result.status == "planned" else "dropped"
    return (
        f"{number} waiting {verb}; {result.dead} dead and all published stay on record; "
        f"{result.detail}"
    )


class DroppedSoFar:
    """Prints a line from time to time: millions of events take minutes."""

    def __init__(self) -> None:
        self._total = 0

    def dropped(self, count: int) -> None:
        before, self._total = self._total, self._total + count
        if before // NOTE_EVERY_EVENTS != self._total // NOTE_EVERY_EVENTS:
            note(f"{self._total} dropped so far")
