"""What `outbox-relay check` says about SQS."""

import pytest

from broker.sqs.answers import Asked, answer, answering, error
from broker.sqs.conftest import MakePublisher
from broker.sqs.queues import Queues
from dev.services import ElasticMq
from dev.services.process import free_port
from outbox_core.errors import PublisherError
from outbox_relay.publishers.protocol import CheckResult, Sample

pytestmark = pytest.mark.sqs

SAMPLES: list[Sample] = [
    {"event_type": name, "aggregate_type": None, "tenant_id": None} for name in ("a.b", "c")
]


def about(findings: object, what: str) -> list[CheckResult]:
    assert isinstance(findings, list)
    return [finding for finding in findings if what in finding.text]


def test_each_queue_has_its_own_findings_and_none_is_made(
    elasticmq: ElasticMq, queues: Queues, make_publisher: MakePublisher
) -> None:
    queues.make(name="checked-a-b")
    publisher = make_publisher(elasticmq.queue_url("checked-{event_type}"))
    findings = list(publisher.check(SAMPLES))
    assert findings[0].level == "ok"
    assert elasticmq.url in findings[0].text
    assert "eu-west-1" in findings[0].text
    (there,) = about(findings, "checked-a-b:")
    assert there.level == "ok"
    assert "standard" in there.text
    (missing,) = about(findings, "checked-c ")
    assert missing.level == "fail"
    assert "does not exist" in missing.text
    found = queues.client.list_queues(QueueNamePrefix="checked-")["QueueUrls"]
    assert [url.rpartition("/")[2] for url in found] == ["checked-a-b"]


def test_a_fifo_queue_is_described(queues: Queues, make_publisher: MakePublisher) -> None:
    (_, about_queue) = make_publisher(queues.make(fifo=True)).check(SAMPLES)
    assert about_queue.level == "ok"
    assert "FIFO" in about_queue.text


def test_nobody_listens(make_publisher: MakePublisher) -> None:
    (finding,) = make_publisher(f"http://127.0.0.1:{free_port()}/queue/orders").check(SAMPLES)
    assert finding.level == "fail"
    assert "refused" in finding.text


def test_what_is_told_of_a_queue_at_amazon(make_publisher: MakePublisher) -> None:
    attributes = {
        "FifoQueue": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
        "KmsMasterKeyId": "alias/orders",
        "MaximumMessageSize": "262144",
        "VisibilityTimeout": "0",
        "MessageRetentionPeriod": "345600",
    }

    with answering(lambda asked, sock: answer(200, {"Attributes": attributes})) as server:
        findings = list(make_publisher(server.queue_url("orders.fifo")).check(SAMPLES))
    texts = "\n".join(finding.text for finding in findings)
    assert "high throughput" in texts
    assert "alias/orders (needs kms:GenerateDataKey and kms:Decrypt)" in texts
    assert "kept for 4 days" in texts
    assert [f.level for f in about(findings, "MaximumMessageSize is 262144")] == ["warn"]
    assert [f.level for f in about(findings, "VisibilityTimeout is 0")] == ["warn"]


def test_that_we_may_not_ask_about_it_is_a_warning(make_publisher: MakePublisher) -> None:
    with answering(error(403, "AccessDeniedException")) as server:
        findings = list(make_publisher(server.queue_url()).check(SAMPLES))
    assert [finding.level for finding in findings] == ["ok", "warn"]
    assert "sqs:GetQueueAttributes" in findings[1].cure


def test_keys_that_are_not_accepted_fail(make_publisher: MakePublisher) -> None:
    with answering(error(403, "InvalidClientTokenId", "invalid token")) as server:
        (finding,) = make_publisher(server.queue_url()).check(SAMPLES)
    assert finding.level == "fail"
    assert "does not let us in" in finding.text


def test_a_probe_of_a_template_makes_no_event_up(make_publisher: MakePublisher) -> None:
    asked: list[Asked] = []

    def say(request: Asked, sock: object) -> bytes:
        asked.append(request)
        return answer(400, {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "no"})

    with answering(say) as server:
        make_publisher(server.queue_url("{tenant_id}-orders")).probe()
    assert [request.target for request in asked] == ["GetQueueAttributes"]


@pytest.mark.parametrize(
    "body",
    [
        {"Attributes": None},
        {"Attributes": []},
        {"Attributes": "none"},
        {"Attributes": {"MaximumMessageSize": 5}},
        {"Attributes": {"KmsMasterKeyId": {}}},
    ],
)
def test_an_answer_that_makes_no_sense_is_a_result(
    make_publisher: MakePublisher, body: dict[str, object]
) -> None:
    with answering(lambda asked, sock: answer(200, body)) as server:
        publisher = make_publisher(server.queue_url())
        (finding,) = publisher.check(SAMPLES)
        with pytest.raises(PublisherError, match="not from SQS"):
            publisher.probe()
    assert finding.level == "fail"
    assert "not from SQS" in finding.text


def test_numbers_that_are_none_are_left_out(make_publisher: MakePublisher) -> None:
    odd = {"MaximumMessageSize": "many", "MessageRetentionPeriod": "-1", "FifoQueue": ""}
    with answering(lambda asked, sock: answer(200, {"Attributes": odd})) as server:
        findings = make_publisher(server.queue_url()).check(SAMPLES)
    assert [finding.level for finding in findings] == ["ok", "ok"]
