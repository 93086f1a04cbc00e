"""
From settings to librdkafka's configuration; what must not be changed in it is in
`contract.librdkafka`.

Read by `sender` and `check`, whenever they make a client: secrets are read again each time, so that
a rotated password is picked up without a restart.
"""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from outbox_core.contract.librdkafka import BY_KEY, REFUSED
from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_core.errors import SettingsError
from outbox_core.model.attempt import without_secrets
from outbox_relay.publishers.kafka.tokens import Tokens

Config = dict[str, Any]
Client = TypeVar("Client")

TOPIC_PATIENCE_MS = 2000
"""How long a topic may be unknown before its events fail. librdkafka's 30 s are for topics that
are being created; here they would hold up a whole batch, and the relay tries again anyway."""

QUEUE_KBYTES = 16 * 1024
"""What a producer holds; a larger batch goes out in portions. Several producers and the batches
they come from must fit into the relay's memory."""

LARGEST_BATCH_BYTES = 1_000_000
"""librdkafka's default, below Kafka's default limit of a record batch."""


@dataclass(frozen=True)
class Credentials:
    """What must not appear in any text."""

    values: tuple[str, ...]

    def hide(self, text: str) -> str:
        for value in self.values:
            text = text.replace(value, "***")
        return without_secrets(text)


def check_extras(settings: KafkaSettings) -> None:
    for name, value in settings.config.items():
        if reason := REFUSED.get(name.lower()):
            raise SettingsError(f"kafka.config: {name} cannot be set: {reason}")
        if name == "partitioner" and value not in BY_KEY:
            raise SettingsError(
                f"kafka.config: partitioner {value} does not keep a key in its partition; "
                f"use one of {', '.join(sorted(BY_KEY))}"
            )


def client_config(settings: KafkaSettings) -> tuple[Config, Credentials]:
    """What every client needs: where the brokers are and who we are."""
    check_extras(settings)
    protocol = ("SASL_" if settings.sasl else "") + ("SSL" if settings.tls else "PLAINTEXT")
    config: Config = {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": protocol,
        "client.id": "outbox-relay",
    }
    secrets: list[str] = []
    if sasl := settings.sasl:
        config["sasl.mechanism"] = sasl.mechanism
        if sasl.username is None or sasl.password is None:  # validated: then there is a token
            tokens = Tokens(sasl)
            secrets.append(tokens.last)
            config["oauth_cb"] = tokens
        else:
            secrets.append(sasl.password.read("kafka.sasl.password"))
            config["sasl.username"] = sasl.username.read("kafka.sasl.username")
            config["sasl.password"] = secrets[-1]
    if tls := settings.tls:
        files = {
            "ssl.ca.location": tls.ca_file,
            "ssl.certificate.location": tls.cert_file,
            "ssl.key.location": tls.key_file,
        }
        config |= {name: str(path) for name, path in files.items() if path}
        if tls.key_password:
            secrets.append(tls.key_password.read("kafka.tls.keyPassword"))
            config["ssl.key.password"] = secrets[-1]
    for name, value in settings.config.items():
        config[name] = str(value).lower() if isinstance(value, bool) else value
    return config, Credentials(tuple(s for s in secrets if s))


def producer_config(settings: KafkaSettings, in_order: bool, batch_bytes: int) -> Config:
    """What a producer needs besides `client_config`; it takes precedence."""
    timeout = settings.delivery_timeout.total_seconds()
    config: Config = {
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # as Java's: producers in both share the partitions
        "linger.ms": settings.linger.total_seconds() * 1000,
        "compression.type": settings.compression,
        "message.max.bytes": settings.max_message_bytes,
        "batch.size": batch_bytes,
        "queue.buffering.max.kbytes": max(QUEUE_KBYTES, 2 * settings.max_message_bytes // 1024),
        "topic.metadata.propagation.max.ms": TOPIC_PATIENCE_MS,
        # A little before we stop waiting, so that the client's own reason is what is reported.
        "message.timeout.ms": int(timeout * 900),
    }
    if in_order:
        config["enable.gapless.guarantee"] = True
        # Messages that time out one by one leave gaps that this guarantee does not cover. So here
        # none does: at our own deadline, all that is left is purged at once.
        config["message.timeout.ms"] = int(timeout * 1000) + 60_000
    for name in settings.config:
        config.pop(name, None)
    return config


class Trouble:
    """
    What a client complains about besides the answers to our messages.

    librdkafka reports a lost connection several times a second, both as a log line and as an
    error. The log gets each complaint once a minute; the last error is kept, because "timed out"
    alone explains nothing.
    """

    REPEAT_AFTER_SECONDS = 60.0
    DIGITS = re.compile(r"\d+")

    def __init__(self, logger: logging.Logger, secrets: Credentials) -> None:
        self._logger = logger
        self._secrets = secrets
        self._logged_at: dict[str, float] = {}
        self.last: KafkaError | None = None

    def log(self, level: int, text: str, *args: object) -> None:
        """Called by librdkafka, which uses this object as its logger."""
        line = self._secrets.hide(text % args)
        shape = self.DIGITS.sub("#", line)  # ports and durations make the same line look new
        now = time.monotonic()
        if now - self._logged_at.get(shape, -self.REPEAT_AFTER_SECONDS) < self.REPEAT_AFTER_SECONDS:
            return
        if len(self._logged_at) > 1000:
            self._logged_at.clear()
        self._logged_at[shape] = now
        # At most a warning: whether anything failed is reported where an event was lost over it. We
        # know that gapless mode is experimental, and chose it anyway.
        known = "is experimental" in line
        self._logger.log(logging.DEBUG if known else min(level, logging.WARNING), "%s", line)

    def note(self, error: KafkaError) -> None:
        # "All brokers are down" follows from the error before it and explains less.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.last is None:
            self.last = error

    def because(self) -> str:
        """The end of a sentence about something that did not work."""
        return "" if self.last is None else f" ({self._secrets.hide(self.last.str())})"


def make_client(
    kind: Callable[..., Client], config: Config, secrets: Credentials, trouble: Trouble
) -> Client:
    """A client of this kind; a configuration that librdkafka refuses is a SettingsError."""
    try:
        return kind({**config, "error_cb": trouble.note}, logger=trouble)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0] if error.args else error
        text = reason.str() if isinstance(reason, KafkaError) else str(reason)
        raise SettingsError(f"kafka: {secrets.hide(text)}") from None
