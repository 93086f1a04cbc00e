"""
What can be known about the server without publishing: for `probe` and for `outbox-relay check`.

Whether the server would take an event is tested by an XADD in a transaction that is then discarded:
Redis checks rights, memory, disk, replicas and its own role when it queues a command, and stores
nothing.
"""

import time
from collections.abc import Sequence
from typing import Final

from outbox_core.contract.publishers.redis import RedisSettings
from outbox_core.errors import BrokerRefused, OutboxError, PublisherError
from outbox_core.model.attempt import ErrorClass, without_secrets
from outbox_relay.publishers.protocol import CheckResult
from outbox_relay.publishers.redis.copies import Copies
from outbox_relay.publishers.redis.durability import Server, about_server
from outbox_relay.publishers.redis.errors import (
    CLUSTER_NODE,
    OF_A_CLUSTER,
    ReplyError,
    kind_of,
    lets_nobody_in,
)
from outbox_relay.publishers.redis.wire import Address, Broken, Wire, pack

REQUEST_SECONDS: Final = 5.0
ANY_STREAM: Final = "outbox-relay-probe"
"""Used until something has been published: to test rights and role any name will do, and nothing is
stored."""


def ask_server(settings: RedisSettings, stream: str | None) -> None:
    """PublisherError with the reason if it does not answer, does not let us in or takes nothing."""
    # A new connection each time: it also shows whether we would be let in now.
    wire = _connect(settings)
    try:
        _ask_to_take(settings, wire, stream or ANY_STREAM)
    finally:
        wire.close()


def check_redis(settings: RedisSettings, streams: Sequence[str]) -> list[CheckResult]:
    """What is right and wrong about the server and these streams."""
    try:
        wire = _connect(settings)
    except OutboxError as error:
        return [CheckResult("fail", str(error))]
    try:
        server = Server.ask(wire, time.monotonic() + REQUEST_SECONDS)
        findings = [CheckResult("ok", f"Redis {server.version} at {wire.address} answers")]
        try:
            _ask_to_take(settings, wire, streams[0] if streams else ANY_STREAM)
        except PublisherError as error:
            findings.append(CheckResult("fail", str(error)))
        findings += about_server(settings, server)
        for stream in streams:
            findings += _about_stream(wire, stream)
    except Broken as broken:
        return [CheckResult("fail", f"Redis at {wire.address} does not answer: {broken}")]
    finally:
        wire.close()
    return findings


def _connect(settings: RedisSettings) -> Wire:
    address = Address.of(settings)
    try:
        return Wire(settings, time.monotonic() + REQUEST_SECONDS)
    except Broken as broken:
        text = without_secrets(f"Redis at {address} does not answer: {broken}")
        raise (BrokerRefused if broken.refused else PublisherError)(text) from None
    except ReplyError as error:
        raise _refusal(address, error) from None


def _ask_to_take(settings: RedisSettings, wire: Wire, stream: str) -> None:
    until = time.monotonic() + REQUEST_SECONDS
    try:
        refusal = _would_refuse(wire, stream, until)
        if refusal is not None and kind_of(refusal) is ErrorClass.OUTAGE:
            raise _refusal(wire.address, refusal)
        missing = Copies(settings.wait).missing(wire, until)
    except Broken as broken:
        raise PublisherError(f"Redis at {wire.address} does not answer: {broken}") from None
    if missing is not None:
        raise PublisherError(f"Redis at {wire.address}: {missing.error.text}")


def _would_refuse(wire: Wire, stream: str, until: float) -> ReplyError | None:
    wire.send(pack("MULTI") + pack("XADD", stream, "*", "x", "") + pack("DISCARD"), until)
    replies = [wire.read(until) for _ in range(3)]
    return next((reply for reply in replies if isinstance(reply, ReplyError)), None)


def _refusal(address: Address, error: ReplyError) -> PublisherError:
    if lets_nobody_in(error):
        return BrokerRefused(f"Redis at {address} refuses us: {error.text}")
    why = f"it is {CLUSTER_NODE}: {error.text}" if error.code in OF_A_CLUSTER else error.text
    return PublisherError(f"Redis at {address} takes nothing: {why}")


def _about_stream(wire: Wire, stream: str) -> list[CheckResult]:
    until = time.monotonic() + REQUEST_SECONDS
    refusal = _would_refuse(wire, stream, until)
    if refusal is not None and kind_of(refusal) is ErrorClass.DESTINATION:
        cure = f"give the relay's user the key: ACL SETUSER ... %W~{stream} (before Redis 7: ~...)"
        return [CheckResult("fail", f"stream {stream}: {refusal.text}", cure)]
    try:
        kind = wire.ask("TYPE", stream, until=until)
        if kind == b"none":
            text = f"stream {stream} does not exist yet; its first event creates it"
            return [CheckResult("ok", text)]
        if kind != b"stream":
            if not isinstance(kind, bytes):
                raise Broken.out_of_step()
            found = kind.decode(errors="replace")
            text = f"{stream} is a {found} and not a stream: its events would wait"
            return [CheckResult("fail", text, "rename it, or change redis.stream")]
        length = wire.ask("XLEN", stream, until=until)
        if not isinstance(length, int):
            raise Broken.out_of_step()
        return [CheckResult("ok", f"stream {stream}: {length} entries")]
    except ReplyError as error:
        text = f"stream {stream} cannot be inspected (needs TYPE and XLEN): {error.text}"
        return [CheckResult("warn", text)]
