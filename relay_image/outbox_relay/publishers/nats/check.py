"""What can be known about the server and its streams without publishing: for `outbox-relay
check`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from outbox_core.contract.publishers.nats import NatsSettings
from outbox_relay.publishers.nats.connection import Connection
from outbox_relay.publishers.nats.errors import NO_RESPONDERS
from outbox_relay.publishers.nats.streams import (
    FIRST_WITH_ATOMIC,
    INFO,
    answer_of,
    ask_names,
    config_of,
    names_of,
)
from outbox_relay.publishers.protocol import CheckResult, Level

REQUEST_SECONDS = 5.0
NANOSECONDS = 1e9
USUAL_LEASE_SECONDS = 60.0
"""Events that a crashed relay held are sent again after its lease. A publisher knows only that the
lease is longer than its own timeout."""


def check_nats(
    settings: NatsSettings, connection: Connection, subjects: Sequence[str]
) -> list[CheckResult]:
    until = time.monotonic() + REQUEST_SECONDS
    version = ".".join(map(str, connection.version))
    results = [CheckResult("ok", f"NATS at {connection.url} answers: version {version}")]
    (account,) = connection.request([("$JS.API.INFO", None)], until)
    if account is not None and account.status == NO_RESPONDERS:
        text = "JetStream is not enabled for this account"
        return [*results, CheckResult("fail", text, "enable it in the server's configuration")]
    if error := answer_of(account).get("error"):
        return [*results, CheckResult("fail", f"JetStream: {error.get('description')}")]
    if connection.max_payload < settings.max_message_bytes:
        text = (
            f"the server's max_payload is {connection.max_payload}, below the relay's "
            f"maxMessageBytes ({settings.max_message_bytes}): larger messages fail at once"
        )
        results.append(CheckResult("warn", text, "lower maxMessageBytes, or raise max_payload"))
    found: dict[str, list[str]] = {}
    for subject, reply in zip(subjects, ask_names(connection, list(subjects), until), strict=True):
        names = names_of(reply)
        if names is None:
            text = f"cannot ask which stream has the subject {subject}"
            cure = "allow the relay's user to publish to $JS.API.STREAM.NAMES"
            results.append(CheckResult("warn", text, cure))
        elif not names:
            cure = "create a stream that has it"
            results.append(CheckResult("fail", f"no stream has the subject {subject}", cure))
        elif settings.stream is not None and settings.stream not in names:
            text = f"subject {subject} belongs to stream {names[0]}, not to {settings.stream}"
            results.append(CheckResult("fail", text))
        else:
            found.setdefault(names[0], []).append(subject)
    if settings.stream is not None:
        found.setdefault(settings.stream, [])
    replies = connection.request([(INFO + name, None) for name in found], until)
    for name, reply in zip(found, replies, strict=True):
        config = config_of(reply)
        if config:
            results += about_stream(settings, connection, name, config)
        elif error := answer_of(reply).get("error"):
            results.append(CheckResult("fail", f"stream {name}: {error.get('description')}"))
        else:
            text = f"stream {name}: its settings cannot be read, so it gets no atomic batches"
            cure = f"allow the relay's user to publish to {INFO}{name}"
            results.append(CheckResult("warn", text, cure))
    return results


def about_stream(
    settings: NatsSettings, connection: Connection, name: str, config: Mapping[str, Any]
) -> list[CheckResult]:
    results: list[CheckResult] = []

    def add(level: Level, text: str, cure: str = "") -> None:
        results.append(CheckResult(level, f"stream {name}: {text}", cure))

    replicas = _number(config, "num_replicas", 1)
    add("ok", f"{replicas} replica(s), {config.get('storage', 'file')} storage")
    if config.get("no_ack"):
        add("fail", "no_ack is set: nothing is ever acknowledged", "set no_ack to false")
    if config.get("sealed"):
        add("fail", "it is sealed and takes nothing")
    if config.get("storage") == "memory":
        add("warn", "memory storage: what was acknowledged is lost when the servers stop")
    elif replicas == 1:
        add(
            "warn",
            "one replica: if the machine crashes, what was acknowledged in the last 2 minutes may "
            "be lost, unless the server has `sync_interval: always`, which the relay cannot see",
            "use 3 replicas, or set sync_interval: always; atomic batches share the disk write",
        )
    elif replicas < 3:
        add("warn", f"{replicas} replicas: with one of them away nothing is acknowledged")
    if settings.deduplicate:
        window = _number(config, "duplicate_window", 0) / NANOSECONDS
        needed = max(USUAL_LEASE_SECONDS, settings.delivery_timeout.total_seconds())
        if window < needed:
            add(
                "warn",
                f"duplicate_window is {window:g} s: an event that is sent again after a relay's "
                "lease may be stored twice",
                "make it longer than the relay's lease",
            )
    if settings.atomic == "Auto" and not config.get("allow_atomic"):
        needs = "set allow_atomic" if connection.version >= FIRST_WITH_ATOMIC else "use NATS 2.12"
        add("warn", "no atomic batches: slower, especially in order", needs)
    limit = _number(config, "max_msg_size", -1)
    if 0 <= limit < settings.max_message_bytes:
        add("warn", f"max_msg_size is {limit}, below maxMessageBytes: larger messages fail at once")
    return results


def _number(config: Mapping[str, Any], name: str, default: int) -> int:
    """The default also if it is not a number that Go could have written: then the answer is
    faulty."""
    found = config.get(name)
    return found if isinstance(found, int) and abs(found) < 1 << 63 else default
