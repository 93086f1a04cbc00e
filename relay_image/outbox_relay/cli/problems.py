"""`dead`, `stuck`, `counts`: what is wrong, and how many events are affected."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import click

from outbox_core.model.lifecycle import State
from outbox_core.store.inspect import counts as count
from outbox_core.store.inspect import problems
from outbox_core.store.inspect.backlog import MOST_COUNTED_ROWS
from outbox_core.store.inspect.listing import Filter, Page, select
from outbox_core.store.reading import Row, clock
from outbox_relay.cli.inspect import error_cell, print_listing
from outbox_relay.cli.options import (
    Source,
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
    print_json,
    print_table,
    shorten,
)

HINT = (
    "When the cause is fixed: outbox-relay replay EVENT... --reason '...' sends them again; "
    "outbox-relay skip EVENT --reason '...' lets a blocked key continue without one."
)


@click.command()
@with_source
@relay_option
@click.option("--tenant", metavar="TENANT")
@click.option(
    "--group-by", type=click.Choice(list(problems.GROUP_BY)), default="error", show_default=True
)
@click.option("--list", "as_list", is_flag=True, help="The events themselves, newest first.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--before-seq", type=int, help="With --list: the next page.")
@timeout_option
@output_option
def dead(
    source: Source,
    relay: str | None,
    tenant: str | None,
    group_by: str,
    as_list: bool,
    limit: int,
    before_seq: int | None,
    timeout: float,
    output: str,
) -> None:
    """Dead events, grouped by their error; numbers and ids in error texts are ignored."""
    with source.snapshot(timeout) as conn:
        now = clock(conn)
        if as_list:
            wanted = Filter(relay=relay, tenant=tenant, states=(State.DEAD,))
            print_listing(select(conn, wanted, Page(limit, None, before_seq)), output, False, now)
            if output == "table":
                note(HINT)
            return
        groups, complete = problems.dead_groups(conn, group_by, relay, tenant)
    if output == "json":
        document = [{**g.by, **{k: v for k, v in asdict(g).items() if k != "by"}} for g in groups]
        print_json({"groups": document[:limit], "complete": complete, "hint": HINT})
        return
    columns: Columns = {
        "COUNT": lambda g: g["count"],
        "RELAY": lambda g: g.get("relay"),
        "CLASS": lambda g: g.get("class"),
        "CODE": lambda g: g.get("code"),
        "TYPE": lambda g: g.get("event_type"),
        "TENANT": lambda g: g.get("tenant_id"),
        "KEY": lambda g: g.get("ordering_key"),
        "OLDEST": lambda g: age_cell(g["oldest"], now),
        "NEWEST": lambda g: age_cell(g["newest"], now),
        "FOR EXAMPLE": lambda g: g["samples"][0],
        "TEXT": lambda g: shorten(g.get("text") or "", 100),
    }
    print_table(columns, [g.by | vars(g) for g in groups[:limit]])
    if not groups:
        note("nothing is dead")
        return
    if not complete:
        note(f"only the newest {problems.MOST_DEAD_READ} were read")
    note(HINT)


EXPIRED_COLUMNS: Columns = {
    "RELAY": lambda r: r["relay"],
    "EVENT": lambda r: r["event_id"],
    "TYPE": lambda r: r["event_type"],
    "CLAIMED BY": lambda r: r["claimed_by"],
    "LEASE UNTIL": lambda r: r["lease_until"],
}
FAILING_COLUMNS: Columns = {
    "RELAY": lambda r: r["relay"],
    "EVENT": lambda r: r["event_id"],
    "TYPE": lambda r: r["event_type"],
    "FAILURES": lambda r: r["attempts_in_budget"],
    "CRASHES": lambda r: r["crashes"] or None,
    "NEXT": lambda r: r["available_at"],
    "ERROR": lambda r: error_cell(r["last_error"]),
}
BLOCKED_COLUMNS: Columns = {
    "RELAY": lambda r: r["relay"],
    "KEY": lambda r: r["ordering_key"],
    "WAITING": lambda r: capped(r["waiting"], problems.MOST_COUNTED_BEHIND),
    "DEAD EVENT": lambda r: r["event_id"],
    "TYPE": lambda r: r["event_type"],
    "ERROR": lambda r: error_cell(r["last_error"]),
}
UNMATCHED_COLUMNS: Columns = {
    "TYPE": lambda r: r["event_type"],
    "TENANT": lambda r: r["tenant_id"],
    "COUNT": lambda r: r["count"],
    "OLDEST": lambda r: r["oldest"],
}
IDLE_COLUMNS: Columns = {
    "RELAY": lambda r: r["relay"],
    "ACTIVE": lambda r: "yes" if r["active"] else "no",
    "PENDING": lambda r: ("~" if r["approximate"] else "") + str(r["pending"]),
    "DUE FOR": lambda r: age(r["oldest_pending_seconds"]),
}


def capped(count: int, cap: int) -> str:
    return f"{cap}+" if count > cap else str(count)


@click.command()
@with_source
@relay_option
@click.option(
    "--attempts",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="From how many failures on an event counts as failing repeatedly.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@timeout_option
@output_option
def stuck(
    source: Source, relay: str | None, attempts: int, limit: int, timeout: float, output: str
) -> None:
    """What does not move: expired claims, repeated failures, blocked keys, unmatched events."""
    with source.snapshot(timeout) as conn:
        found = problems.stuck(conn, relay, attempts, limit=limit)
    if output == "json":
        print_json(found._asdict())
        return
    sections: list[tuple[str, Columns, Sequence[Row]]] = [
        (
            "Claimed, and the lease has expired (reap takes them back)",
            EXPIRED_COLUMNS,
            found.expired_claims,
        ),
        ("Failing repeatedly (show EVENT shows why)", FAILING_COLUMNS, found.failing),
        ("Keys blocked by a dead event (replay or skip it)", BLOCKED_COLUMNS, found.blocked_keys),
        ("Unmatched: no relay subscribes to these", UNMATCHED_COLUMNS, found.unmatched),
        (
            "Relays with due events that claim nothing (is one running?)",
            IDLE_COLUMNS,
            found.idle_relays,
        ),
    ]
    shown = 0
    for title, columns, rows in sections:
        if rows:
            click.echo(("\n" if shown else "") + title)
            print_table(columns, rows)
            shown += 1
    if not shown:
        note("nothing is stuck")


@click.command()
@with_source
@click.option("--exact", is_flag=True, help="Count every row, however long it takes.")
@timeout_option
@output_option
def counts(source: Source, exact: bool, timeout: float, output: str) -> None:
    """How many events are in which state, per relay; large numbers are estimated (~)."""
    with source.snapshot(timeout, whole_tables=exact) as conn:
        rows = count.exact_counts(conn) if exact else count.cheap_counts(conn)
        unmatched = count.count_unmatched(conn, exact)
    if output == "json":
        print_json({"relays": rows, "unmatched": unmatched})
        return

    def number(state: str) -> Callable[[Row], str]:
        return lambda r: (
            ("~" if r["approximate"] and r[state] >= MOST_COUNTED_ROWS else "") + str(r[state])
        )

    columns: Columns = {
        "RELAY": lambda r: r["relay"],
        "PENDING": number("pending"),
        "CLAIMED": number("claimed"),
        "PUBLISHED": number("published"),
        "DEAD": number("dead"),
        "OLDEST DUE": lambda r: age(r["oldest_pending_seconds"]),
    }
    print_table(columns, rows)
    if unmatched["count"]:
        click.echo(f"unmatched events: {unmatched['count']}{'+' * unmatched['at_least']}")
