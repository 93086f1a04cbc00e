"""
Settings of a relay process: `relay.yaml`, each field with its default and the reason for it.

The kinds of publisher are in `publishers`. What an OutboxRelay has too is in a base class here
(`StoreTimeouts`, `Behaviour`); where the two differ, `outbox_operator.relay.spec` has its own.
Parsing does no IO but reading that file; secrets are read when they are needed.
"""

import socket
from datetime import timedelta
from os import environ, getpid
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from outbox_core.contract.publishers.union import PublisherSettings, PublisherUnion
from outbox_core.contract.values import Duration, SecretRef, Settings, format_duration
from outbox_core.errors import SettingsError
from outbox_core.model.retry import Override, Retry

ONE_SECOND = timedelta(seconds=1)


class StoreTimeouts(Settings):
    connect_timeout: Annotated[Duration, Field(ge=ONE_SECOND)] = timedelta(seconds=10)
    """How long to wait for a connection before the database counts as unreachable and is tried
    again."""
    statement_timeout: Annotated[Duration, Field(ge=ONE_SECOND)] = timedelta(seconds=30)
    """How long a statement may take: longer than any healthy one needs. At most half the lease is
    used, so that a relay gives up a statement that hangs while it still holds its claims."""


class StoreSettings(StoreTimeouts):
    dsn: SecretRef = SecretRef(env="OUTBOX_DSN")
    """A PostgreSQL connection string. It may point to PgBouncer in transaction mode."""


class Subscription(Settings):
    event_types: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    """Patterns; `*` stands for any run of characters: `order.*`."""
    tenants: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Only these tenants' events. Default: every event, with or without a tenant."""


class RetryOverride(Settings):
    event_type: Annotated[str, Field(min_length=1)]
    """A pattern, as in the subscription. The first override that matches applies."""
    max_attempts: Annotated[int, Field(ge=1)] | None = None
    """Total attempts for these types. Default: the relay's."""
    base_delay: Annotated[Duration, Field(ge=timedelta(milliseconds=10))] | None = None
    """The delay before their first retry. Default: the relay's."""


class RetryPolicy(Settings):
    max_attempts: Annotated[int, Field(ge=1)] = 10
    """Total attempts, that is, retries + 1. With the delays below, the tenth comes about 13 minutes
    after the first: long enough to create a missing topic or grant a right, short enough that a
    mistake becomes a dead letter in the same shift. Outages do not count."""
    base_delay: Annotated[Duration, Field(ge=timedelta(milliseconds=10))] = timedelta(seconds=2)
    """The delay before the first retry. It doubles each time: 2, 4, 8 ... seconds. Never zero,
    because a failure must not become a tight loop."""
    max_delay: Annotated[Duration, Field(ge=timedelta(milliseconds=10))] = timedelta(minutes=5)
    """The longest delay. It is short enough that a fixed cause is noticed within minutes."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Each delay is longer or shorter by up to this share, so that events that failed together are
    not all tried again at the same moment."""
    max_age: Annotated[Duration, Field(ge=ONE_SECOND)] | None = None
    """Events older than this are declared dead instead of published late. The age of an event that
    a person brings back counts from that moment. Default: none, so an outage of any length makes no
    event DEAD."""
    max_crashes: Annotated[int, Field(ge=1)] = 3
    """How many times the relay may die while this event alone is in flight before the event is
    declared dead. Fewer than maxAttempts, because each such attempt costs a restart."""
    overrides: Annotated[tuple[RetryOverride, ...], Field(max_length=100)] = ()
    """Different counts and delays for some event types."""

    @model_validator(mode="after")
    def delays_fit(self) -> "RetryPolicy":
        if self.base_delay > self.max_delay:
            raise ValueError("baseDelay must not be longer than maxDelay")
        return self

    def policy(self) -> Retry:
        return Retry(
            max_attempts=self.max_attempts,
            base_delay=self.base_delay,
            max_delay=self.max_delay,
            jitter=self.jitter,
            max_age=self.max_age,
            max_crashes=self.max_crashes,
            overrides=tuple(
                Override(o.event_type, o.max_attempts, o.base_delay) for o in self.overrides
            ),
        )


class Polling(Settings):
    shortest: Annotated[Duration, Field(ge=timedelta(milliseconds=1))] = timedelta(milliseconds=8)
    """The time from one claim to the next while events trickle in, because a claim of one event
    costs the database about as much as a claim of fifty. A longer one saves CPU, and each event
    waits half of it on average. Claims follow each other sooner when a tenth of a batch gathers in
    less time, and without pause while there is a backlog."""
    longest: Annotated[Duration, Field(ge=timedelta(milliseconds=10))] = timedelta(seconds=3)
    """The pause after a while without events: an idle relay costs 20 statements a minute."""

    @model_validator(mode="after")
    def in_order(self) -> "Polling":
        if self.shortest > self.longest:
            raise ValueError("shortest must not be longer than longest")
        return self

    notify: bool = False
    """Wake the relay with NOTIFY, so that an idle relay starts at once. Off by default, because
    every producer's commit then takes a lock that the whole server shares. It needs a direct
    connection (not PgBouncer in transaction mode)."""


class HttpPort(Settings):
    host: str = "0.0.0.0"  # noqa: S104 - see below
    """The address to listen on. All addresses by default, because the kubelet and Prometheus
    connect from outside the pod. Use 127.0.0.1 on a machine that others can reach."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Serves /metrics, /healthz, /readyz and /status. 0: any free port, which is logged."""


class Log(Settings):
    format: Literal["json", "text"] = "json"
    """json for log collectors, text for people."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """info: one line for everything that matters. warning and above: only trouble."""


class Behaviour(Settings):
    """How a relay works, in `relay.yaml` and in an OutboxRelay."""

    subscription: Subscription = Subscription()
    """Which events this relay publishes."""
    batch_size: Annotated[int, Field(ge=1, le=10_000)] = 2000
    """Events per claim. Below 500, round trips cost half the speed. Above 2000 nothing is gained,
    and more events are in doubt after a crash."""
    workers: Annotated[int, Field(ge=1, le=16)] = 2
    """Claims in flight per process: while one waits for the broker, another talks to the database.
    More than two help only if the broker is far away."""
    lease: Annotated[Duration, Field(ge=ONE_SECOND)] = timedelta(seconds=60)
    """How long a process holds a claim without renewing it. Must be longer than the publisher's
    deliveryTimeout, or another relay could publish the event before a late acknowledgement arrives.
    It is also how long the events of a process that died wait."""
    ordering: Literal["None", "Key"] = "None"
    """Key: the events of an ordering key are published in commit order."""
    on_dead: Literal["Block", "Continue"] = "Block"
    """With ordering Key. Block: a dead event holds back the rest of its key until a person decides.
    Continue: the key goes on without it. The default is Block, because ordering is there to prevent
    gaps."""
    retry: RetryPolicy = RetryPolicy()
    """How often a failed event is tried again, and after which delays."""
    polling: Polling = Polling()
    """How often the relay asks the database for new events."""
    drain_timeout: Annotated[Duration, Field(ge=ONE_SECOND)] | None = None
    """After SIGTERM: how long events in flight may take. Default: 5 s more than the publisher's
    deliveryTimeout. A shorter time than that timeout is refused, because events that are cut off
    are sent twice."""
    log: Log = Log()
    """What a process logs, and in which format."""

    @property
    def publisher_union(self) -> PublisherUnion:
        """Which `publisher` is: its type differs between the two."""
        raise NotImplementedError

    @model_validator(mode="after")
    def order_is_possible(self) -> "Behaviour":
        publisher = self.publisher_union
        if self.ordering == "Key" and not publisher.chosen.holds_order:
            raise ValueError(no_order(publisher.kind, publisher.chosen.why_unordered))
        return self

    @model_validator(mode="after")
    def times_fit(self) -> "Behaviour":
        timeout = self.publisher_union.timeout  # no publish call of a healthy one takes longer
        if self.lease <= timeout:
            raise ValueError(
                f"lease ({format_duration(self.lease)}) must be longer than the publisher's "
                f"deliveryTimeout ({format_duration(timeout)}): raise the one or lower the other"
            )
        if self.drain_timeout is not None and self.drain_timeout < timeout:
            raise ValueError(
                f"drainTimeout ({format_duration(self.drain_timeout)}) must not be shorter than "
                f"the publisher's deliveryTimeout ({format_duration(timeout)}), or what is in "
                "flight at the stop is sent twice"
            )
        return self

    @property
    def drain(self) -> timedelta:
        return self.drain_timeout or self.publisher_union.timeout + timedelta(seconds=5)


def no_order(kind: str, why: str) -> str:
    return f"ordering: Key is not possible with {kind}: {why}; use ordering: None"


class RelaySettings(Behaviour):
    """The whole of `relay.yaml`."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The relay's name in the database. Processes with the same name share its events."""
    store: StoreSettings = StoreSettings()
    """Where the events are."""
    publisher: PublisherSettings
    """Where they go: exactly one kind of publisher."""
    paused: bool = False
    """Claim nothing, reap nothing, hold no lanes: only watch and report the backlog. The relay
    stays registered, so events are still kept for it, and go out when it is resumed."""
    http: HttpPort = HttpPort()
    """Metrics, probes and status, on one port."""
    identity: str = ""
    """The name of this process in claimed_by. Default: $POD_NAME, otherwise host name and process
    id."""

    @property
    def publisher_union(self) -> PublisherSettings:
        return self.publisher

    @property
    def statement_timeout(self) -> timedelta:
        return min(self.store.statement_timeout, self.lease / 2)

    @property
    def owner(self) -> str:
        if self.identity:
            return self.identity
        return environ.get("POD_NAME") or f"{socket.gethostname()}-{getpid()}"


def load_relay(path: Path) -> RelaySettings:
    """Read and check a config file; what is wrong is reported field by field."""
    import yaml  # here, because the operator reads these models and no file

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text") from error
    except yaml.YAMLError as error:  # its own text would repeat the line, secrets included
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(f"{path} is not YAML{where}") from None
    if not isinstance(data, dict):
        raise SettingsError(f"{path}: expected a mapping with at least name and publisher")
    try:
        return RelaySettings.model_validate(data)
    except ValidationError as error:
        raise SettingsError(f"{path}:\n{explain(error)}") from error


UNKNOWN_FIELD = "unknown field: remove it or correct its name; a newer version may know it"


def explain(error: ValidationError) -> str:
    """One line per mistake: where it is, and what is expected there."""
    mistakes = [
        f"  {'.'.join(map(str, e['loc'])) or 'relay'}: {explain_one(e['type'], e['msg'])}"
        for e in error.errors(include_url=False, include_input=False)
    ]
    return "\n".join([*mistakes, *(f"  {note}" for note in getattr(error, "__notes__", ()))])


def explain_one(kind: str, message: str) -> str:
    return UNKNOWN_FIELD if kind == "extra_forbidden" else message.removeprefix("Value error, ")
