"""`migrate`, `run`, `reap`, `validate`: what runs in pods. Heavy modules are imported when used."""

from datetime import timedelta
from pathlib import Path

import click

from outbox_core.contract.settings import load_relay
from outbox_relay.cli.options import Source, as_duration, config_option, with_source


@click.command()
@with_source
@click.option(
    "--wait",
    callback=as_duration,
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="How long to try to get locks that others hold before giving up.",
)
def migrate(source: Source, wait: timedelta) -> None:
    """Create the outbox schema, or bring it up to date.

    Repeating it changes nothing, and several at once are safe. A schema that is newer than this
    program is left alone. It waits at most 2 s at a time for a table's lock, because producers and
    relays queue up behind it; then it lets them pass and tries again.
    """
    from outbox_core.observe import logs
    from outbox_core.store.migrate import KNOWN
    from outbox_core.store.migrate import migrate as bring_up_to_date

    if source.settings is not None:
        logs.set_up(source.settings.log)
    report = bring_up_to_date(source.dsn, wait)
    if report.after > KNOWN:
        click.echo(
            f"left alone: the schema has version {report.after}, newer than this program "
            f"(which knows {KNOWN}), and still serves it"
        )
        return
    if not report.applied:
        click.echo(f"nothing to do (version {report.after})")
        return
    for name in report.applied:
        click.echo(f"applied {name}")
    click.echo(f"the schema now has version {report.after} (before: {report.before or 'none'})")


@click.command()
@config_option
@click.pass_context
def run(ctx: click.Context, config: Path) -> None:
    """Publish events until SIGTERM. Any number of processes may run.

    After SIGTERM it claims nothing more, finishes what is in flight and gives the rest back.
    """
    from outbox_relay.worker.relay import run_relay

    ctx.exit(run_relay(load_relay(config)))


@click.command()
@config_option
def reap(config: Path) -> None:
    """Take back, once, what dead relay processes had claimed; for a CronJob."""
    from outbox_relay.worker.reaper import reap_once

    settings = load_relay(config)
    if settings.paused:
        click.echo(f"relay {settings.name!r} is paused: nothing was taken back")
        return
    report = reap_once(settings)
    click.echo(f"taken back: {report.reaped}, of them dead: {report.dead}")


@click.command()
@config_option
def validate(config: Path) -> None:
    """Check relay.yaml without connecting to anything."""
    from outbox_relay.publishers.registry import check_publisher

    settings = load_relay(config)
    check_publisher(settings)
    click.echo(f"{config}: valid (relay {settings.name!r})")
