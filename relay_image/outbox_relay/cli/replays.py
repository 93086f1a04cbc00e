"""`replays`: the bulk replays of this database, and their progress."""

import click

from outbox_core.store.inspect import overview
from outbox_core.store.reading import Row, clock
from outbox_relay.cli.options import (
    Source,
    output_option,
    relay_option,
    timeout_option,
    with_source,
)
from outbox_relay.cli.output import Columns, age_cell, note, print_json, print_table, shorten


@click.command()
@with_source
@relay_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@timeout_option
@output_option
def replays(source: Source, relay: str | None, limit: int, timeout: float, output: str) -> None:
    """Bulk replays, newest first: what was requested, and the progress."""
    with source.snapshot(timeout) as conn:
        rows = overview.replays(conn, relay, limit)
        now = clock(conn)
    if output == "json":
        print_json({"replays": rows})
        return
    columns: Columns = {
        "REPLAY": lambda r: r["id"],
        "RELAY": lambda r: r["relay"],
        "ACTION": lambda r: r["action"],
        "STATE": lambda r: r["state"],
        "MATCHED": lambda r: r["matched"],
        "REPLAYED": lambda r: r["replayed"],
        "SKIPPED": skipped_cell,
        "DONE": lambda r: "" if r["percent"] is None else f"{r['percent']:g}%",
        "LAST CHUNK": lambda r: age_cell(r["last_chunk_at"], now),
        "AGE": lambda r: age_cell(r["created_at"], now),
        "WHO": lambda r: r["requested_by"],
        "REASON": lambda r: shorten(r["reason"], 60),
    }
    print_table(columns, rows)
    if not rows:
        note("there are no bulk replays")


def skipped_cell(row: Row) -> str:
    if not row["skipped"]:
        return ""
    because = sorted(row["skipped_because"].items())
    return f"{row['skipped']} ({', '.join(f'{n} {what}' for what, n in because)})"
