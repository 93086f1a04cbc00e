"""`check`: would events get from this database to this broker? Every answer with its cure."""

import time
from collections.abc import Sequence
from datetime import timedelta
from fnmatch import fnmatchcase

import click

from outbox_core.contract.settings import RelaySettings
from outbox_core.errors import OutboxError, StoreError
from outbox_core.store.doctor.diagnosis import Diagnosis, diagnose
from outbox_core.store.doctor.facts import EventKind, event_kinds, gather
from outbox_relay.cli.options import Source, as_duration, output_option, with_source
from outbox_relay.cli.output import print_json, printable

RETRY_PAUSE_SECONDS = 1.0


@click.command()
@with_source
@click.option(
    "--wait",
    callback=as_duration,
    default="0s",
    metavar="DURATION",
    help="Try again until it passes, for at most this long.",
)
@output_option
@click.pass_context
def check(ctx: click.Context, source: Source, wait: timedelta, output: str) -> None:
    """Show what is right and wrong between the database and the broker.

    With --config the broker and its destinations are checked too. Exit code 1 where something would
    stop delivery (fail); a warning does not.
    """
    deadline = time.monotonic() + wait.total_seconds()
    findings = run_checks(source)
    while any(f.level == "fail" for f in findings) and time.monotonic() < deadline:
        time.sleep(RETRY_PAUSE_SECONDS)
        findings = run_checks(source)
    passed = all(f.level != "fail" for f in findings)
    if output == "json":
        print_json({"ok": passed, "findings": [f._asdict() for f in findings]})
    else:
        for finding in findings:
            click.echo(f"{finding.level:4}  {finding.check}: {printable(finding.text)}")
            if finding.cure:
                click.echo(f"      cure: {printable(finding.cure)}")
    ctx.exit(0 if passed else 1)


def run_checks(source: Source) -> list[Diagnosis]:
    kinds: list[EventKind] = []
    try:
        with source.work("outbox-check") as conn:
            facts = gather(conn)
            findings = [Diagnosis("ok", "database", "connected"), *diagnose(facts, source.settings)]
            if facts.schema and not facts.missing:
                kinds = event_kinds(conn)
    except StoreError as error:
        cure = "check the DSN, the network and pg_hba.conf; is the server up?"
        findings = [Diagnosis("fail", "database", str(error), cure)]
    if source.settings is not None:
        findings += check_broker(source.settings, kinds)
    return findings


def check_broker(settings: RelaySettings, kinds: Sequence[EventKind]) -> list[Diagnosis]:
    # Here and not above: nothing but this needs the broker's client.
    from outbox_relay.publishers.registry import make_publisher

    name = settings.publisher.kind
    try:
        publisher = make_publisher(settings)
    except OutboxError as error:
        return [Diagnosis("fail", name, str(error))]
    try:
        found = publisher.check([kind._asdict() for kind in subscribed(settings, kinds)])
        return [Diagnosis(level, name, text, cure) for level, text, cure in found]
    except OutboxError as error:
        return [Diagnosis("fail", name, str(error))]
    finally:
        publisher.close(timedelta(0))


def subscribed(settings: RelaySettings, kinds: Sequence[EventKind]) -> list[EventKind]:
    """The recent kinds of event that this relay gets, and the types that its subscription names."""
    wanted, tenants = settings.subscription.event_types, settings.subscription.tenants
    seen = [
        kind
        for kind in kinds
        if any(fnmatchcase(kind.event_type, pattern) for pattern in wanted)
        and (tenants is None or kind.tenant_id in tenants)
    ]
    known = {kind.event_type for kind in seen}
    named = [EventKind(t, None, None) for t in wanted if "*" not in t and t not in known]
    return seen + named
