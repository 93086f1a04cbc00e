"""
Settings of a relay process: `relay.yaml`, each field with its default and the reason for it.

What an OutboxRelay has, too, stands in a base class here (`StoreTimeouts`, `KafkaProducer`,
`SaslMechanism`, `PublisherUnion`, `Behaviour`); where the two differ, `outbox_operator.relay.spec`
has its own. Parsing does no IO but reading that file; secrets are read when they are needed.
"""

import socket
from collections.abc import Mapping
from datetime import timedelta
from os import environ, getpid
from pathlib import Path
from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from outbox_core.contract.values import Duration, SecretRef, Settings, format_duration
from outbox_core.errors import SettingsError
from outbox_core.model.retry import Override, Retry

ONE_SECOND = timedelta(seconds=1)


class StoreTimeouts(Settings):
    connect_timeout: Annotated[Duration, Field(ge=ONE_SECOND)] = timedelta(seconds=10)
    """How long to wait for a connection before the store counts as away, and is tried again."""
    statement_timeout: Annotated[Duration, Field(ge=ONE_SECOND)] = timedelta(seconds=30)
    """Above any healthy statement's time. At most half the lease is used, so that a statement that
    hangs is given up while the claims are still ours."""


class StoreSettings(StoreTimeouts):
    dsn: SecretRef = SecretRef(env="OUTBOX_DSN")
    """A PostgreSQL connection string; PgBouncer in transaction mode may be in between."""


class Subscription(Settings):
    event_types: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    """Patterns; `*` stands for any run of characters: `order.*`."""
    tenants: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Only these tenants' events. Default: every event, with or without a tenant."""


class Tls(Settings):
    ca_file: Path | None = None
    """The CA that signed the broker's certificate. Default: the system's."""
    cert_file: Path | None = None
    """Our own certificate, where the broker asks for one (mutual TLS)."""
    key_file: Path | None = None
    """The key to it."""
    key_password: SecretRef | None = None
    """Where the key is encrypted."""


class SaslMechanism(Settings):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """As the broker has it. PLAIN sends the password itself: only with TLS."""


class Sasl(SaslMechanism):
    username: SecretRef
    """Who we are to the broker."""
    password: SecretRef
    """Read again for every new producer, so that a changed one needs no restart."""


class KafkaProducer(Settings):
    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """`host:port`, several separated by commas."""
    topic: Annotated[str, Field(min_length=1)] = "{event_type}"
    """A template over {event_type}, {aggregate_type} and {tenant_id}."""
    format: Literal["Raw", "CloudEvents"] = "Raw"
    """Raw: the payload and the application's headers as they are, plus outbox-* headers.
    CloudEvents: the payload as it is, the event's fields as ce_* headers (binary mode)."""
    source: Annotated[str, Field(min_length=1)] = "/outbox"
    """The CloudEvents source: which system the events come from."""
    delivery_timeout: Annotated[Duration, Field(ge=ONE_SECOND)] = timedelta(seconds=30)
    """How long the client tries to deliver one message; what it resends meanwhile is one attempt.
    Below the lease, or a late acknowledgement finds the event claimed by another relay."""
    linger: Annotated[Duration, Field(le=timedelta(seconds=1))] = timedelta(milliseconds=0)
    """How long the client waits for more messages while events trickle in. Large batches wait for
    20 ms at least, because a request for each of their messages would cost more."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """None by default: it costs the relay CPU that a drain needs. lz4 or zstd where the network or
    the broker's disk is what is short."""
    max_message_bytes: Annotated[int, Field(ge=1000)] = 1_000_000
    """Larger messages are refused before they are sent: at most the broker's own limit."""


class KafkaSettings(KafkaProducer):
    tls: Tls | None = None
    """Present, even if empty: TLS."""
    sasl: Sasl | None = None
    """Present: log in with a name and a password."""
    config: Mapping[str, str | int | bool] = Field(default_factory=dict)
    """More settings of librdkafka, for what has no field here. Those that the delivery guarantee
    rests on (acks, idempotence, ordering of requests, timeouts) cannot be changed."""


KafkaKind = TypeVar("KafkaKind", bound=KafkaProducer)


class PublisherUnion(Settings, Generic[KafkaKind]):
    """Exactly one kind of publisher: in `relay.yaml`, and with other secrets in an OutboxRelay."""

    kafka: KafkaKind | None = None
    """Apache Kafka, and what speaks its protocol."""

    @model_validator(mode="after")
    def exactly_one(self) -> Self:
        if self.kafka is None:
            raise ValueError("name exactly one publisher: kafka")
        return self

    @property
    def timeout(self) -> timedelta:
        assert self.kafka is not None
        return self.kafka.delivery_timeout


class PublisherSettings(PublisherUnion[KafkaSettings]):
    pass


class RetryOverride(Settings):
    event_type: Annotated[str, Field(min_length=1)]
    """A pattern, as in the subscription; the first that matches counts."""
    max_attempts: Annotated[int, Field(ge=1)] | None = None
    """Attempts in all for these types. Default: the relay's."""
    base_delay: Annotated[Duration, Field(ge=timedelta(milliseconds=10))] | None = None
    """Before their first retry. Default: the relay's."""


class RetryPolicy(Settings):
    max_attempts: Annotated[int, Field(ge=1)] = 10
    """Attempts in all, so retries + 1. With the delays below the tenth comes some 13 minutes
    after the first: long enough to create a missing topic or grant a right, short enough that a
    mistake becomes a dead letter in the same shift. Outages are not counted."""
    base_delay: Annotated[Duration, Field(ge=timedelta(milliseconds=10))] = timedelta(seconds=2)
    """Before the first retry; doubles each time: 2, 4, 8 ... seconds. Never zero: a failure must
    not become a tight loop."""
    max_delay: Annotated[Duration, Field(ge=timedelta(milliseconds=10))] = timedelta(minutes=5)
    """The cap, so that a repaired cause is noticed within minutes."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Each delay is up to this share longer or shorter, so that what failed together does not
    come back together."""
    max_age: Annotated[Duration, Field(ge=ONE_SECOND)] | None = None
    """Events older than this are declared dead instead of published late; what a person brings back
    is as old as that. Default: never; an outage of any length then sends nothing to DEAD."""
    max_crashes: Annotated[int, Field(ge=1)] = 3
    """How often an event that was alone in flight may see its relay die before it is declared
    dead: fewer than max_attempts, because every try costs a restart."""
    overrides: Annotated[tuple[RetryOverride, ...], Field(max_length=100)] = ()
    """Other counts and delays for some event types."""

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
    shortest: Annotated[Duration, Field(ge=timedelta(milliseconds=1))] = timedelta(milliseconds=2)
    """Pause between two claims while events trickle in: each costs the database about the same for
    one event as for fifty. None while there is more to do than a trickle."""
    longest: Annotated[Duration, Field(ge=timedelta(milliseconds=10))] = timedelta(seconds=3)
    """Pause when nothing has come for a while: an idle relay costs 20 statements a minute."""

    @model_validator(mode="after")
    def in_order(self) -> "Polling":
        if self.shortest > self.longest:
            raise ValueError("shortest must not be longer than longest")
        return self

    notify: bool = False
    """Be woken by NOTIFY, so that an idle relay starts at once. Off by default: it makes every
    producer's commit take a lock that is shared by the whole server, and needs a direct
    connection (not PgBouncer in transaction mode)."""


class Http(Settings):
    host: str = "0.0.0.0"  # noqa: S104 - see below
    """Where to listen. All addresses, because in a pod the kubelet and Prometheus come from outside
    it; 127.0.0.1 on a machine that others reach."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """/metrics, /healthz, /readyz, /status. 0 = any free port, which is logged."""


class Log(Settings):
    format: Literal["json", "text"] = "json"
    """json for machines that collect, text for people that watch."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """At info, one line for whatever matters; from warning on, only trouble."""


class Behaviour(Settings):
    """How a relay works: in `relay.yaml` and in an OutboxRelay alike."""

    subscription: Subscription = Subscription()
    """Which events are this relay's."""
    batch_size: Annotated[int, Field(ge=1, le=10_000)] = 2000
    """Events per claim. Below 500 the round trips cost half the speed; above 2000 nothing is won,
    and more is in doubt after a crash."""
    workers: Annotated[int, Field(ge=1, le=16)] = 2
    """Claims in flight per process: while one waits for the broker, another talks to the
    database. More than two only help where the broker is far away."""
    lease: Annotated[Duration, Field(ge=ONE_SECOND)] = timedelta(seconds=60)
    """How long a claim is ours unless renewed. Above the publisher's timeout, or a late
    acknowledgement finds the event published by another relay. It is also how long the events
    of a relay that died wait."""
    ordering: Literal["None", "Key"] = "None"
    """Key: events of an ordering key are published in commit order."""
    on_dead: Literal["Block", "Continue"] = "Block"
    """With ordering Key: whether a dead event holds the rest of its key until somebody decides,
    or the key goes on without it. Block, because a gap is what ordering was asked to prevent."""
    retry: RetryPolicy = RetryPolicy()
    """How often, and after which pauses, a failed event is tried again."""
    polling: Polling = Polling()
    """How often the database is asked for new events."""
    drain_timeout: Annotated[Duration, Field(ge=ONE_SECOND)] | None = None
    """After SIGTERM: how long what is in flight may take. Default: 5 s more than the publisher's
    deliveryTimeout; less than that timeout is refused, because what is cut off is sent twice."""
    log: Log = Log()
    """What a process logs, and how."""

    @property
    def publisher_timeout(self) -> timedelta:
        """No publish call of a healthy publisher takes longer."""
        raise NotImplementedError

    @model_validator(mode="after")
    def times_fit(self) -> "Behaviour":
        timeout = self.publisher_timeout
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
        return self.drain_timeout or self.publisher_timeout + timedelta(seconds=5)


class RelaySettings(Behaviour):
    """The whole of `relay.yaml`."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The relay's name in the database. Processes with the same name share its events."""
    store: StoreSettings = StoreSettings()
    """Where the events are."""
    publisher: PublisherSettings
    """Where they go: exactly one kind."""
    paused: bool = False
    """Claim nothing, reap nothing, hold no lanes: only watch and report the backlog. The relay is
    registered as ever, so events go on being kept for it, and go out when it is resumed."""
    http: Http = Http()
    """Metrics, probes and status: one port."""
    identity: str = ""
    """Who we are in claimed_by. Default: $POD_NAME, otherwise host name and process id."""

    @property
    def publisher_timeout(self) -> timedelta:
        return self.publisher.timeout

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
