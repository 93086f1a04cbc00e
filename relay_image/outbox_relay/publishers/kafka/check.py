"""
What can be known about the target without publishing: for `probe` and for `outbox-relay check`.

Uses requests that create nothing: asking for a topic's metadata as a producer does would make
the broker create it.

A probe asks for metadata and does not call `describe_cluster`: librdkafka 2.16 aborts the whole
process if the answer to that comes late from a broker that hung (an assertion in
rd_kafka_admin_response_parse). `check` may call it: the broker has just answered, and there is
nothing to lose.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource  # the public module does not declare them
from confluent_kafka.admin._topic import TopicDescription

from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_core.errors import BrokerRefused, OutboxError, PublisherError
from outbox_relay.publishers.kafka.config import Trouble, client_config, make_client
from outbox_relay.publishers.kafka.errors import LETS_NOBODY_IN
from outbox_relay.publishers.protocol import CheckResult, Level

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 5.0

NO_TOPIC = "?"
"""No topic can have this name: none is created, and the answer is short however many there are."""


def ask_cluster(settings: KafkaSettings) -> int:
    """How many brokers there are; PublisherError with the reason if none answers or lets us in."""
    config, secrets = client_config(settings)
    trouble = Trouble(log, secrets)
    admin = make_client(AdminClient, _for_admin(config), secrets, trouble)
    try:
        # A new connection each time: it also shows whether we would be let in now.
        return len(admin.list_topics(NO_TOPIC, timeout=REQUEST_TIMEOUT_SECONDS).brokers)
    except KafkaException as error:
        admin.poll(0)  # the reason comes here; the request itself only timed out
        refused = trouble.last is not None and trouble.last.code() in LETS_NOBODY_IN
        raise (BrokerRefused if refused else PublisherError)(
            f"Kafka at {settings.bootstrap_servers} does not answer: "
            f"{secrets.hide(error.args[0].str())}{trouble.because()}"
        ) from None


def check_kafka(settings: KafkaSettings, topics: Sequence[str]) -> list[CheckResult]:
    """What is right and wrong about the broker and these topics."""
    try:
        brokers = ask_cluster(settings)
    except OutboxError as error:
        return [CheckResult("fail", str(error))]
    config, secrets = client_config(settings)
    admin = make_client(AdminClient, _for_admin(config), secrets, Trouble(log, secrets))
    text = f"Kafka at {settings.bootstrap_servers} answers: {brokers} broker(s)"
    findings = [CheckResult("ok", text)]
    if not topics:
        return findings
    described = admin.describe_topics(
        TopicCollection(list(topics)), request_timeout=REQUEST_TIMEOUT_SECONDS
    )
    for name, future in described.items():
        try:
            description = future.result()
        except KafkaException as error:
            findings.append(_about_absent(admin, name, error.args[0]))
        else:
            findings += _about(settings, description, _config(admin, "topic", name))
    return findings


def _about(
    settings: KafkaSettings, topic: TopicDescription, config: dict[str, str] | None
) -> list[CheckResult]:
    findings: list[CheckResult] = []

    def add(level: Level, text: str) -> None:
        findings.append(CheckResult(level, f"topic {topic.name}: {text}"))

    replicas = min((len(p.replicas) for p in topic.partitions), default=0)
    add("ok", f"{len(topic.partitions)} partition(s), {replicas} replica(s)")
    if leaderless := [p.id for p in topic.partitions if getattr(p, "leader", None) is None]:
        add("fail", f"no leader for partition(s) {leaderless}")
    if replicas < 2:
        add("warn", "one replica; its disk's loss is the events' loss")
    if config is None:
        add("warn", "its settings cannot be read (needs DescribeConfigs)")
        return findings
    needed = int(config.get("min.insync.replicas", 1))
    if short := [p.id for p in topic.partitions if len(p.isr) < min(needed, replicas)]:
        add(
            "fail",
            f"fewer in-sync replicas than min.insync.replicas ({needed}) in partition(s) {short}: "
            "nothing is acknowledged there",
        )
    if needed > replicas:
        add(
            "warn",
            f"min.insync.replicas is {needed} and it has {replicas} replica(s): some brokers then "
            "acknowledge nothing, others with fewer copies",
        )
    elif replicas > 1 and needed < 2:
        add(
            "warn",
            "min.insync.replicas is 1: with the other replicas away, one disk holds the only copy "
            "of what was acknowledged",
        )
    limit = int(config.get("max.message.bytes", settings.max_message_bytes))
    if limit < settings.max_message_bytes:
        add(
            "warn",
            f"max.message.bytes is {limit}, below the relay's maxMessageBytes "
            f"({settings.max_message_bytes}): batches are refused and sent again in parts; lower "
            "maxMessageBytes",
        )
    return findings


def _about_absent(admin: AdminClient, name: str, error: KafkaError) -> CheckResult:
    if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        return CheckResult("fail", f"topic {name}: {error.str()}")
    if _creates_topics(admin):
        text = f"topic {name} does not exist; the broker creates it, with its defaults"
        return CheckResult("warn", text)
    return CheckResult("fail", f"topic {name} does not exist")


def _creates_topics(admin: AdminClient) -> bool:
    """False also if we may not ask: then it cannot be relied on."""
    cluster = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_SECONDS).result()
    config = _config(admin, "broker", str(cluster.nodes[0].id)) if cluster.nodes else None
    return (config or {}).get("auto.create.topics.enable") == "true"


def _config(admin: AdminClient, kind: str, name: str) -> dict[str, str] | None:
    resource = ConfigResource(kind, name)
    with suppress(KafkaException):
        entries = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_SECONDS)[
            resource
        ].result()
        return {entry.name: entry.value for entry in entries.values()}
    return None


def _for_admin(config: dict[str, object]) -> dict[str, object]:
    """`kafka.config` is meant for producers; an admin client accepts it, with warnings."""
    return {**config, "log.connection.close": False}
