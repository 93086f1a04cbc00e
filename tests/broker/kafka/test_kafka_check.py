"""What `outbox-relay check` says about Kafka."""

import pytest
from confluent_kafka.admin import AdminClient

from dev.services import Kafka
from dev.services.process import free_port
from fixtures.topics import MakeTopic
from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_relay.publishers.kafka.check import check_kafka
from outbox_relay.publishers.protocol import CheckResult

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: Kafka) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap)


def levels(findings: list[CheckResult], about: str) -> set[str]:
    return {finding.level for finding in findings if about in finding.text}


def test_a_broker_that_answers_and_a_topic_that_is_there_are_fine(
    settings: KafkaSettings, topic: str
) -> None:
    findings = check_kafka(settings, [topic])
    assert findings[0] == CheckResult(
        "ok", f"Kafka at {settings.bootstrap_servers} answers: 1 broker(s)"
    )
    assert CheckResult("ok", f"topic {topic}: 3 partition(s), 1 replica(s)") in findings
    assert "fail" not in {finding.level for finding in findings}


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_does_not_answer_fails_with_the_reason() -> None:
    settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}")
    (finding,) = check_kafka(settings, ["orders"])
    assert finding.level == "fail"
    assert "Connection refused" in finding.text


def test_a_missing_topic_fails_and_is_not_created_by_the_question(
    settings: KafkaSettings, kafka_admin: AdminClient
) -> None:
    findings = check_kafka(settings, ["checked-and-absent"])
    assert findings[1:] == [CheckResult("fail", "topic checked-and-absent does not exist")]
    assert "checked-and-absent" not in kafka_admin.list_topics(timeout=10).topics


def test_a_topic_that_takes_less_than_the_relay_sends_is_warned_about(
    settings: KafkaSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"max.message.bytes": "50000"})
    assert levels(check_kafka(settings, [topic]), "max.message.bytes is 50000") == {"warn"}


def test_more_in_sync_replicas_than_there_are_is_warned_about(
    settings: KafkaSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"min.insync.replicas": "2"})
    assert levels(check_kafka(settings, [topic]), "min.insync.replicas is 2") == {"warn"}


def test_each_topic_has_its_own_findings(settings: KafkaSettings, topic: str) -> None:
    findings = check_kafka(settings, [topic, "absent", "no topic name"])
    assert levels(findings, f"topic {topic}:") >= {"ok"}
    assert levels(findings, "topic absent") == {"fail"}
    assert levels(findings, "topic no topic name") == {"fail"}
