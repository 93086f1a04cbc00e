"""`trace`, `causes`, `effects`: what caused events, and what they caused."""

from uuid import UUID

import click

from outbox_core.store.inspect import event as event_of
from outbox_core.store.inspect.listing import Filter, Page, select
from outbox_core.store.reading import clock
from outbox_relay.cli.inspect import print_listing
from outbox_relay.cli.options import Source, output_option, timeout_option, with_source
from outbox_relay.cli.output import Columns, note, print_json, print_table


@click.command()
@with_source
@click.argument("correlation_id")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True)
@click.option("--after-seq", type=int, help="The next page.")
@click.option("--tenant", metavar="TENANT")
@timeout_option
@output_option
def trace(
    source: Source,
    correlation_id: str,
    limit: int,
    after_seq: int | None,
    tenant: str | None,
    timeout: float,
    output: str,
) -> None:
    """All events of a correlation id, in order."""
    with source.snapshot(timeout) as conn:
        now = clock(conn)
        wanted = Filter(correlation=correlation_id, tenant=tenant)
        listing = select(conn, wanted, Page(limit, after_seq=after_seq, oldest_first=True))
    print_listing(listing, output, True, now)


CHAIN_COLUMNS: Columns = {
    "DEPTH": lambda r: r["depth"],
    "CREATED": lambda r: r["created_at"],
    "EVENT": lambda r: r["event_id"],
    "TYPE": lambda r: "  " * r["depth"] + r["event_type"],
    "STATE": lambda r: ", ".join(f"{n}: {s}" for n, s in sorted((r["states"] or {}).items())),
}


@click.command()
@with_source
@click.argument("event_id", type=click.UUID)
@timeout_option
@output_option
def causes(source: Source, event_id: UUID, timeout: float, output: str) -> None:
    """What caused an event, what caused that, and so on."""
    with source.snapshot(timeout) as conn:
        rows = event_of.causes(conn, event_id)
    if output == "json":
        print_json({"events": rows})
        return
    print_table(CHAIN_COLUMNS, rows)
    if rows[-1]["causation_id"]:
        note(f"the first cause, {rows[-1]['causation_id']}, is not in this outbox")


@click.command()
@with_source
@click.argument("event_id", type=click.UUID)
@timeout_option
@output_option
def effects(source: Source, event_id: UUID, timeout: float, output: str) -> None:
    """What an event caused, what that caused, and so on."""
    with source.snapshot(timeout) as conn:
        rows = event_of.effects(conn, event_id)
    if output == "json":
        print_json({"events": rows})
    else:
        print_table(CHAIN_COLUMNS, rows)
