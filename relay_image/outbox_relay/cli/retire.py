"""`retire`: a relay that is not wanted any more gets no events, and those that wait are dropped."""

from datetime import timedelta

import click

from outbox_core.store.intervene.retirement import Retirement, Retiring
from outbox_relay.cli.intervene import default_actor, not_blank
from outbox_relay.cli.options import Source, as_duration, output_option, with_source
from outbox_relay.cli.output import note, print_json

NOTE_EVERY_EVENTS = 1_000_000


@click.command()
@with_source
@click.option("--relay", metavar="NAME", help="Which; with --config the one that it names.")
@click.option("--reason", required=True, callback=not_blank, help="Kept in the audit for good.")
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
    help="For processes that drain, and for transactions that are open.",
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
    """A relay ends for good, and the events that wait for it are dropped.

    Stop its processes first. What it published and what died stays on record. A relay that
    registers under its name later starts again: with the events from then on, and those that no
    relay has wanted. Repeating it changes nothing.
    """
    if relay is None and source.settings is None:
        raise click.UsageError("which relay? Name it by --relay or --config")
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
    """A line now and then: millions take minutes."""

    def __init__(self) -> None:
        self._total = 0

    def dropped(self, count: int) -> None:
        before, self._total = self._total, self._total + count
        if before // NOTE_EVERY_EVENTS != self._total // NOTE_EVERY_EVENTS:
            note(f"{self._total} dropped so far")
