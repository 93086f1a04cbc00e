"""What an acknowledgement of this server is worth, by its own settings: for `check`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from outbox_core.contract.publishers.redis import RedisSettings
from outbox_relay.publishers.protocol import CheckResult
from outbox_relay.publishers.redis.errors import CLUSTER_NODE, ReplyError
from outbox_relay.publishers.redis.wire import Broken, Wire

CONFIG = ("save", "appendfsync", "min-replicas-to-write", "proto-max-bulk-len")
UNTIL_A_CRASH = "an acknowledged event may be lost in a crash of the server's machine"

A_SECOND = f"{UNTIL_A_CRASH}, if younger than about a second"


@dataclass(frozen=True)
class Server:
    info: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    """Settings that we may not read are absent."""

    @classmethod
    def ask(cls, wire: Wire, until: float) -> "Server":
        """Raises Broken if the answers make no sense."""
        info: dict[str, str] = {}
        config: dict[str, str] = {}
        try:
            text = wire.ask("INFO", until=until)
            if not isinstance(text, bytes):
                raise Broken.out_of_step()
            for line in text.decode(errors="replace").splitlines():
                name, _, value = line.partition(":")
                info[name] = value
        except ReplyError:
            pass
        for name in CONFIG:  # one by one: versions before 7 take no more
            try:
                found = wire.ask("CONFIG", "GET", name, until=until)
            except ReplyError:
                break
            match found:
                case []:
                    pass  # a server that does not know it
                case [bytes(), bytes(setting)]:
                    config[name] = setting.decode(errors="replace")
                case _:
                    raise Broken.out_of_step()
        return cls(info, config)

    @property
    def version(self) -> str:
        return self.info.get("redis_version", "of an unknown version")

    @property
    def waits_in_vain(self) -> bool:
        """With `appendfsync everysec`, WAITAOF answers before the file is on the disk: so do all
        versions of Valkey that we know (8.0, 9.1), and Redis 7.4 (redis/redis#13793)."""
        return self.info.get("server_name") == "valkey" or self.version.startswith("7.4.")


def about_server(settings: RedisSettings, server: Server) -> list[CheckResult]:
    if not server.info:
        text = "its settings cannot be read (needs INFO): whether it keeps events is unknown"
        return [CheckResult("warn", text)]
    return [
        *_about_role(server),
        *_about_disk(settings, server),
        *_about_memory(server),
        *_about_lengths(settings, server),
        *_about_replicas(settings, server),
    ]


def _about_role(server: Server) -> Iterator[CheckResult]:
    if server.info.get("cluster_enabled") == "1":
        yield CheckResult("fail", f"it is {CLUSTER_NODE}")
    if server.info.get("role") == "slave":
        yield CheckResult("fail", "it is a replica", "name the primary in redis.url")


def _about_disk(settings: RedisSettings, server: Server) -> Iterator[CheckResult]:
    if server.info.get("aof_enabled") != "1":
        if server.config.get("save") == "":
            text = "it keeps everything in memory only: a restart loses acknowledged events"
        else:
            text = "it writes snapshots only: a crash loses what was acknowledged since the last"
        yield CheckResult("warn", text, "set appendonly yes")
        return
    match server.config.get("appendfsync"), settings.wait.aof:
        case "always", _:
            yield CheckResult("ok", "what it acknowledges is on its disk (appendfsync always)")
        case "everysec", True if server.waits_in_vain:
            text = f"its WAITAOF does not wait for its disk if appendfsync is everysec: {A_SECOND}"
            yield CheckResult("warn", text, "set appendfsync always, or use Redis 8")
        case "everysec", True:
            yield CheckResult("ok", "what it acknowledges is on its disk (wait.aof)")
        case "everysec", False:
            yield CheckResult("ok", f"appendfsync is everysec: {A_SECOND}")
        case "no", True:
            text = "appendfsync is no, so wait.aof waits in vain: nothing is ever acknowledged"
            yield CheckResult("fail", text, "set appendfsync always, or everysec")
        case "no", False:
            text = f"appendfsync is no: {UNTIL_A_CRASH}, if younger than about half a minute"
            yield CheckResult("warn", text, "set appendfsync everysec or always")
        case _:
            text = "appendonly is on; appendfsync cannot be read (needs CONFIG GET)"
            yield CheckResult("ok", text)


def _about_memory(server: Server) -> Iterator[CheckResult]:
    policy = server.info.get("maxmemory_policy", "noeviction")
    limited = server.info.get("maxmemory", "0") != "0"
    cure = "set maxmemory-policy noeviction: then the relay waits while memory is full"
    if policy.startswith("allkeys"):
        text = f"maxmemory-policy is {policy}: when memory is full, it deletes whole streams"
        yield CheckResult("fail" if limited else "warn", text, cure)
    elif policy.startswith("volatile"):
        text = f"maxmemory-policy is {policy}: it deletes streams that have an expiry"
        yield CheckResult("warn", text, cure)


def _about_lengths(settings: RedisSettings, server: Server) -> Iterator[CheckResult]:
    longest = _number(server.config.get("proto-max-bulk-len"))
    if 0 < longest < settings.max_message_bytes:
        text = (
            f"proto-max-bulk-len is {longest}, below the relay's maxMessageBytes "
            f"({settings.max_message_bytes}): larger events are sent only to be refused"
        )
        yield CheckResult("warn", text, "lower maxMessageBytes, or raise proto-max-bulk-len")


def _about_replicas(settings: RedisSettings, server: Server) -> Iterator[CheckResult]:
    connected = _number(server.info.get("connected_slaves"))
    wanted = settings.wait.replicas
    if connected < wanted:
        text = f"{connected} replica(s) are connected, and wait.replicas is {wanted}"
        yield CheckResult("fail", text, "nothing is published until they are back")
    elif connected == 0:
        yield CheckResult("warn", "it has no replica; its disk's loss is the events' loss")
    elif wanted == 0:
        text = f"{connected} replica(s), and wait.replicas is 0: a failover may lose what was"
        yield CheckResult("warn", f"{text} acknowledged just before", "set wait.replicas to 1")
    else:
        yield CheckResult("ok", f"{connected} replica(s), and wait.replicas is {wanted}")
    needed = server.config.get("min-replicas-to-write")
    if wanted and needed is not None and _number(needed) < wanted:
        text = (
            f"min-replicas-to-write is {needed}, below wait.replicas ({wanted}): while they are "
            "away, what is tried is stored, and stored again by the next try"
        )
        yield CheckResult("warn", text, f"set min-replicas-to-write {wanted}")


def _number(text: str | None) -> int:
    """0 if there is none."""
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0
