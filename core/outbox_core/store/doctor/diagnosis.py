"""
Diagnosis: what the facts about a database mean for delivery, and the cure.

Called by `cli` (`check`). Pure. `fail`: it stops delivery or breaks a guarantee. `warn`: it will
cause harm later. `ok` is reported too, so that the reader knows what was checked.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from outbox_core.contract.settings import RelaySettings
from outbox_core.store.doctor.facts import Facts, Holder
from outbox_core.store.migrate import KNOWN

OLDEST_SERVER = 140000
"""CYCLE in recursive queries; pg_current_xact_id and gen_random_uuid are older."""
LONG_TRANSACTION_SECONDS = 300.0
"""An open transaction is worth a warning after this time."""
TOLERATED_SKEW_SECONDS = 5.0
"""Between the database's clock and ours."""


class Diagnosis(NamedTuple):
    level: str
    """ok, warn or fail"""
    check: str
    text: str
    cure: str = ""


def ok(check: str, text: str) -> Diagnosis:
    return Diagnosis("ok", check, text)


def warn(check: str, text: str, cure: str) -> Diagnosis:
    return Diagnosis("warn", check, text, cure)


def fail(check: str, text: str, cure: str) -> Diagnosis:
    return Diagnosis("fail", check, text, cure)


def diagnose(facts: Facts, settings: RelaySettings | None) -> list[Diagnosis]:
    return [diagnosis for check in CHECKS for diagnosis in check(facts, settings)]


def server(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    major, minor = divmod(facts.version, 10000)
    text = f"PostgreSQL {major}.{minor}, as {facts.user}"
    if facts.version < OLDEST_SERVER:
        yield fail("server", text, f"use PostgreSQL {OLDEST_SERVER // 10000} or newer")
    else:
        yield ok("server", text)


def writable(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    if facts.in_recovery:
        yield fail(
            "writable",
            "this server is a standby: it accepts no writes",
            "connect to the primary (target_session_attrs=read-write in the DSN)",
        )
    elif facts.settings["default_transaction_read_only"] == "on":
        yield fail(
            "writable",
            "default_transaction_read_only is on",
            "ALTER ROLE or ALTER DATABASE ... RESET default_transaction_read_only",
        )
    else:
        yield ok("writable", "a primary that accepts writes")


def schema(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    if not facts.may_use_schema:
        yield fail(
            "schema",
            f"{facts.user} has no USAGE on schema outbox",
            f'GRANT outbox_relay TO "{facts.user}"',
        )
    elif facts.schema == 0 and facts.missing:
        return  # it exists but cannot be read: `grants` reports it
    elif facts.schema == 0:
        yield fail("schema", "there is no outbox schema", "outbox-relay migrate")
    elif facts.changed_migrations:
        yield fail(
            "schema",
            f"made before the first release: {', '.join(facts.changed_migrations)} differs from "
            "this program's",
            "save what you need, DROP SCHEMA outbox CASCADE, outbox-relay migrate",
        )
    elif facts.schema < KNOWN:
        yield fail(
            "schema",
            f"version {facts.schema}, this program needs {KNOWN}",
            "outbox-relay migrate",
        )
    elif facts.schema > KNOWN and facts.serves_us:
        yield ok("schema", f"version {facts.schema}, which serves this program too ({KNOWN})")
    elif facts.schema > KNOWN:
        yield fail(
            "schema",
            f"version {facts.schema}, this program knows {KNOWN}",
            "use a newer outbox-relay",
        )
    elif facts.other_code:
        yield warn(
            "schema",
            f"version {facts.schema}, with {' and '.join(facts.other_code)} of another build",
            "run outbox-relay migrate of the newest build that is in use",
        )
    else:
        yield ok("schema", f"version {facts.schema}")


def grants(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    if not facts.missing:
        if facts.schema:
            yield ok("grants", f"{facts.user} has every right that a relay needs")
        return
    shown = ", ".join(facts.missing[:5])
    more = len(facts.missing) - 5
    yield fail(
        "grants",
        f"{facts.user} lacks {shown}" + (f" and {more} more" * (more > 0)),
        f'GRANT outbox_relay TO "{facts.user}"',
    )


def triggers(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    if not facts.schema:
        return
    if facts.missing_triggers:
        yield fail(
            "triggers",
            f"missing: {', '.join(facts.missing_triggers)}",
            "restore them from a backup or from schema/triggers.sql: without them events may be "
            "lost",
        )
    if facts.disabled_triggers:
        yield fail(
            "triggers",
            f"disabled: {', '.join(facts.disabled_triggers)}",
            "ALTER TABLE outbox.event (or .delivery, .relay, .audit) ENABLE ALWAYS TRIGGER ...; "
            "events inserted while they were disabled have no delivery",
        )
    if not facts.missing_triggers and not facts.disabled_triggers:
        yield ok("triggers", "all enabled")


def durability(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    off = [n for n in ("fsync", "full_page_writes") if facts.settings[n] == "off"]
    if off:
        yield warn(
            "durability",
            f"{' and '.join(off)} off: a power cut may lose everything",
            "set to on and restart",
        )
    if facts.settings["synchronous_commit"] == "off":
        yield warn(
            "durability",
            "synchronous_commit is off: a crash may lose the last commits",
            "set it to on: otherwise new events may be lost, and others published again",
        )
    elif not off:
        yield ok(
            "durability",
            "fsync and full_page_writes on, synchronous_commit "
            + facts.settings["synchronous_commit"],
        )


def vacuum(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    if facts.settings["autovacuum"] == "off" or facts.settings["track_counts"] == "off":
        yield warn(
            "autovacuum",
            "off: every event leaves two dead row versions",
            "set autovacuum and track_counts to on: otherwise delivery becomes slower every day",
        )
    else:
        yield ok("autovacuum", "on")


def connections(facts: Facts, settings: RelaySettings | None) -> Iterator[Diagnosis]:
    if facts.pooled:
        return  # the pooler limits them
    total = int(facts.settings["max_connections"])
    free = total - int(facts.settings["superuser_reserved_connections"]) - facts.connections
    needed = (settings.workers if settings else 2) + 3  # leases, status, listener
    text = f"{facts.connections} of {total} in use"
    if free < needed:
        yield warn(
            "connections",
            f"{text}: one relay process needs up to {needed}",
            "raise max_connections, or put PgBouncer (transaction mode) in between",
        )
    else:
        yield ok("connections", text)


def pooler(facts: Facts, settings: RelaySettings | None) -> Iterator[Diagnosis]:
    if not facts.pooled:
        yield ok("pooler", "none in between")
    elif settings is not None and settings.polling.notify:
        yield fail(
            "pooler",
            "there is one in between, but polling.notify needs a session",
            "set polling.notify to false, or connect directly",
        )
    else:
        yield ok("pooler", "one in between (PgBouncer): fine, because polling needs no session")


def old_transactions(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    long = [h for h in facts.holders if (h.seconds or 0) > LONG_TRANSACTION_SECONDS or is_stale(h)]
    for holder in long:
        age = f" for {holder.seconds / 60:.0f} min" if holder.seconds is not None else ""
        who = ", ".join(filter(None, (holder.user, holder.application, holder.state)))
        yield warn(
            "old transactions",
            f"{holder.what} {holder.name} ({who}) has been open{age} and keeps the dead rows of "
            f"the last {holder.xids} transactions: tables grow until it ends",
            cure_of(holder),
        )
    if not long:
        oldest = max((h.seconds or 0 for h in facts.holders), default=0)
        yield ok("old transactions", f"the oldest has been open for {oldest:.0f} s")
    if facts.hidden_sessions:
        yield warn(
            "old transactions",
            f"{facts.hidden_sessions} sessions cannot be seen",
            f'GRANT pg_read_all_stats TO "{facts.user}"',
        )


def is_stale(holder: Holder) -> bool:
    return holder.seconds is None and holder.state == "inactive"


def cure_of(holder: Holder) -> str:
    match holder.what:
        case "session":
            return (
                f"find out what it waits for, or SELECT pg_terminate_backend({holder.name}); "
                "idle_in_transaction_session_timeout prevents it"
            )
        case "prepared transaction":
            return f"COMMIT PREPARED or ROLLBACK PREPARED '{holder.name}'"
        case _:
            return f"SELECT pg_drop_replication_slot('{holder.name}') if nobody needs it any more"


def clocks(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    text = f"the database's clock is {abs(facts.skew):.1f} s "
    text += "ahead of ours" if facts.skew > 0 else "behind ours"
    if abs(facts.skew) > TOLERATED_SKEW_SECONDS:
        yield warn(
            "clocks",
            text,
            "synchronise both (NTP): delivery uses the database's clock, logs use ours",
        )
    else:
        yield ok("clocks", text)


def unmatched(facts: Facts, _: RelaySettings | None) -> Iterator[Diagnosis]:
    if facts.unmatched:
        yield warn(
            "subscriptions",
            "there are events that no relay subscribes to",
            "outbox-relay stuck shows their types; a relay that subscribes to them gets them",
        )


Check = Callable[[Facts, RelaySettings | None], Iterator[Diagnosis]]
CHECKS: tuple[Check, ...] = (
    server,
    writable,
    schema,
    grants,
    triggers,
    durability,
    vacuum,
    connections,
    pooler,
    old_transactions,
    clocks,
    unmatched,
)
