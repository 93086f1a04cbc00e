"""`list`, `show`, `audit`, `relays`: what is in the outbox."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import click

from outbox_core.model.lifecycle import State
from outbox_core.store.inspect import event as event_of
from outbox_core.store.inspect import overview
from outbox_core.store.inspect.listing import Filter, Listing, Page, select
from outbox_core.store.reading import Row, clock
from outbox_relay.cli.options import (
    Source,
    as_time_or_age,
    moment,
    output_option,
    relay_option,
    timeout_option,
    with_source,
)
from outbox_relay.cli.output import (
    Columns,
    age,
    age_cell,
    note,
    payload_text,
    payload_value,
    print_fields,
    print_json,
    print_table,
    shorten,
    time_cell,
)

TimeOrAge = datetime | timedelta | None
PAYLOAD_SHOWN_CHARS = 2000
"""The part of a payload that is shown without --full."""


def error_cell(error: dict[str, Any] | None, width: int = 60) -> str:
    if not error:
        return ""
    return shorten(f"{error.get('class')} {error.get('code')}: {error.get('text')}", width)


def state_cell(row: Row, now: datetime) -> str:
    due = row["available_at"]
    match row["state"], row["hold"]:
        case None, _:
            return "- (for no relay)"
        case "PENDING", None:
            return "PENDING (no relay)"
        case "PENDING", "KEY":
            return "PENDING (behind its key)"
        case "PENDING", "TIME" | "SUSPECT" if due > now:
            return f"PENDING (due in {age((due - now).total_seconds())})"
        case "CLAIMED", _ if row["lease_until"] < now:
            return "CLAIMED (lease expired)"
        case "DEAD", "DEAD":
            return "DEAD (blocks its key)"
    return str(row["state"])


def event_columns(now: datetime) -> Columns:
    return {
        "SEQ": lambda r: r["seq"],
        "CREATED": lambda r: r["created_at"],
        "EVENT": lambda r: r["event_id"],
        "TYPE": lambda r: r["event_type"],
        "TENANT": lambda r: r["tenant_id"],
        "KEY": lambda r: shorten(r["ordering_key"] or "", 30),
        "RELAY": lambda r: r["relay"],
        "STATE": lambda r: state_cell(r, now),
        "ATTEMPTS": lambda r: r["attempts"],
        "PUBLISHED": lambda r: r["published_at"],
        "RESULT": lambda r: r["result"],
        "ERROR": lambda r: error_cell(r["last_error"]),
    }


def print_listing(listing: Listing, output: str, oldest_first: bool, now: datetime) -> None:
    flag = "after" if oldest_first else "before"
    if output == "json":
        following = {f"{flag}_seq": listing.next_seq} if listing.next_seq is not None else None
        print_json({"events": listing.rows, "next": following})
        return
    print_table(event_columns(now), listing.rows, keep=("SEQ", "CREATED", "EVENT", "TYPE", "STATE"))
    if not listing.rows:
        note("none found")
    if listing.next_seq is not None:
        note(f"there are more: repeat the command with --{flag}-seq {listing.next_seq}")


def split_aggregate(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, str] | None:
    if value is None:
        return None
    kind, colon, name = value.partition(":")
    if not colon:
        raise click.BadParameter("write TYPE:ID, for example Order:1042", ctx, param)
    return kind, name


@click.command(
    "list",
    epilog="""\b
Examples:
  outbox-relay list --state PENDING --state CLAIMED --relay orders
  outbox-relay list --type 'order.*' --tenant acme --created-after 2h
  outbox-relay list --state DEAD --error 'too large' -o json
""",
)
@with_source
@relay_option
@click.option(
    "--state",
    "states",
    type=click.Choice([s.value for s in State], case_sensitive=False),
    multiple=True,
    help="May be repeated.",
)
@click.option("--type", "event_type", metavar="PATTERN", help="Event type; * is any run of text.")
@click.option("--tenant", metavar="TENANT")
@click.option("--key", metavar="KEY", help="Ordering key.")
@click.option("--correlation", metavar="ID", help="Correlation id.")
@click.option("--aggregate", metavar="TYPE:ID", callback=split_aggregate)
@click.option(
    "--created-after",
    callback=as_time_or_age,
    metavar="TIME",
    help="That time or later; 2h = two hours ago.",
)
@click.option(
    "--created-before", callback=as_time_or_age, metavar="TIME", help="Earlier than that."
)
@click.option("--published-after", callback=as_time_or_age, metavar="TIME")
@click.option("--published-before", callback=as_time_or_age, metavar="TIME")
@click.option("--attempts-min", type=int)
@click.option("--attempts-max", type=int)
@click.option("--error", metavar="TEXT", help="Part of the last error's class, code or text.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--before-seq", type=int, help="The next page, newest first.")
@click.option("--after-seq", type=int, help="The next page, oldest first.")
@click.option("--oldest-first", is_flag=True)
@timeout_option
@output_option
def list_(
    source: Source,
    states: tuple[str, ...],
    created_after: TimeOrAge,
    created_before: TimeOrAge,
    published_after: TimeOrAge,
    published_before: TimeOrAge,
    limit: int,
    before_seq: int | None,
    after_seq: int | None,
    oldest_first: bool,
    timeout: float,
    output: str,
    **more: Any,
) -> None:
    """List events: by state, type, tenant, key, time, attempts, error; newest first."""
    with source.snapshot(timeout) as conn:
        now = clock(conn)
        wanted = Filter(
            states=tuple(State(s) for s in states),
            created_after=moment(created_after, now),
            created_before=moment(created_before, now),
            published_after=moment(published_after, now),
            published_before=moment(published_before, now),
            **more,
        )
        listing = select(conn, wanted, Page(limit, after_seq, before_seq, oldest_first))
    print_listing(listing, output, oldest_first, now)


@click.command()
@with_source
@click.argument("event_id", type=click.UUID)
@click.option(
    "--payload",
    "how",
    type=click.Choice(["auto", "text", "json", "hex", "none"]),
    default="auto",
    show_default=True,
)
@click.option("--full", is_flag=True, help="The whole payload, however large.")
@timeout_option
@output_option
def show(source: Source, event_id: UUID, how: str, full: bool, timeout: float, output: str) -> None:
    """Show one event in full: fields, payload, what each relay and each person did with it."""
    whole = full or output == "json"
    with source.snapshot(timeout) as conn:
        event = event_of.show(conn, event_id, None if whole else 64 * 1024)
        now = clock(conn)
    payload = bytes(event.pop("payload"))
    if output == "json":
        print_json(event | payload_value(payload, how))
    else:
        print_event(event, payload, how, full, now)


def print_event(event: Row, payload: bytes, how: str, full: bool, now: datetime) -> None:
    deliveries, history = event.pop("deliveries"), event.pop("audit")
    print_fields(event)
    if not deliveries:
        click.echo("\nno relay has it: none subscribes to it, or the one that did was retired")
    for delivery in deliveries:
        click.echo(f"\nrelay {delivery.pop('relay')}: {state_cell(delivery, now)}")
        del delivery["state"]
        error = delivery.pop("last_error") or {}
        failure = {"last_error": error_cell(error, 1000) or None, "failed_at": error.get("at")}
        print_fields({**delivery, **failure}, "  ")
    if history:
        click.echo("\ndone by hand:")
        print_table(audit_columns(), history)
    if how == "none":
        return
    text = payload_text(payload, how)
    click.echo(f"\npayload ({event['payload_bytes']} bytes):")
    click.echo(text if full else text[:PAYLOAD_SHOWN_CHARS])
    if not full and (len(text) > PAYLOAD_SHOWN_CHARS or len(payload) < event["payload_bytes"]):
        note("the payload is truncated: --full shows all of it")


def audit_columns() -> Columns:
    return {
        "ID": lambda r: r["id"],
        "AT": lambda r: time_cell(r["at"]),
        "WHO": lambda r: f"{r['actor']} ({r['db_user']})",
        "WHAT": lambda r: r["action"],
        "RELAY": lambda r: r["relay"],
        "EVENT": lambda r: r["event_id"],
        "CHANGE": lambda r: f"{r['before']['state']} > {r['after']['state']}",
        "REASON": lambda r: r["reason"],
    }


@click.command()
@with_source
@click.argument("event_id", type=click.UUID, required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--before-id", type=int, help="The next page.")
@timeout_option
@output_option
def audit(
    source: Source,
    event_id: UUID | None,
    limit: int,
    before_id: int | None,
    timeout: float,
    output: str,
) -> None:
    """Who did what by hand, newest first: to one event, or to all."""
    with source.snapshot(timeout) as conn:
        rows = event_of.audit(conn, event_id, limit + 1, before_id)
    more = len(rows) > limit
    rows = rows[:limit]
    if output == "json":
        print_json({"audit": rows, "next": {"before_id": rows[-1]["id"]} if more else None})
        return
    print_table(audit_columns(), rows)
    if not rows:
        note("nothing was done by hand")
    if more:
        note(f"there are more: repeat the command with --before-id {rows[-1]['id']}")


@click.command()
@with_source
@timeout_option
@output_option
def relays(source: Source, timeout: float, output: str) -> None:
    """The relays that have registered, and what each subscribes to."""
    with source.snapshot(timeout) as conn:
        rows = overview.relays(conn)
        now = clock(conn)
    if output == "json":
        print_json({"relays": rows})
        return
    columns: Columns = {
        "RELAY": lambda r: r["name"],
        "ACTIVE": lambda r: "yes" if r["active"] else "no",
        "ORDERING": lambda r: r["ordering"],
        "TYPES": lambda r: " ".join(r["event_types"]),
        "TENANTS": lambda r: " ".join(r["tenants"] or []),
        "NOTIFY": lambda r: "yes" if r["notify"] else "",
        "LANES HELD BY": lambda r: " ".join(r["lane_holders"] or []),
        "AGE": lambda r: age_cell(r["registered_at"], now),
    }
    print_table(columns, rows)
