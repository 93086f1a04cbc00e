"""When the broker refuses, does not answer, or dies: what is reported, and how soon."""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from broker.kafka.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services import Kafka, wait_until
from fixtures.topics import Consume, MakeTopic
from outbox_core.errors import PublisherError
from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused, Unsent
from outbox_relay.publishers.destinations import TRIAL_EVENTS

pytestmark = pytest.mark.kafka

GRACE = 2.5
"""What a call may take beyond its timeout: purging what is left, on a busy machine."""


def refused(outcome: Outcome) -> Refused:
    assert isinstance(outcome, Refused)
    return outcome


@pytest.mark.parametrize("in_order", [False, True])
def test_oo_33_an_event_too_large_for_the_client_fails_alone(
    in_order: bool, topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    publisher = make_publisher(topic, in_order=in_order, max_message_bytes=2000)
    outcomes = publisher.publish([make_claim(), make_claim(b"x" * 3000), make_claim()])
    assert [type(outcome) for outcome in outcomes] == [Acked, Refused, Acked]
    assert refused(outcomes[1]).error.kind is ErrorClass.EVENT
    assert refused(outcomes[1]).error.code == "MSG_SIZE_TOO_LARGE"
    assert len(consume(topic, 2)) == 2


def test_oo_33_an_event_too_large_for_the_topic_fails_alone(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(1, {"max.message.bytes": "2000"})
    batch = [make_claim(b"x" * (3000 if n == 50 else 30)) for n in range(100)]
    outcomes = make_publisher(topic).publish(batch)
    assert [n for n, o in enumerate(outcomes) if not isinstance(o, Acked)] == [50]
    assert refused(outcomes[50]).error.kind is ErrorClass.EVENT
    assert refused(outcomes[50]).error.code == "MSG_SIZE_TOO_LARGE"
    assert len(consume(topic, 99)) == 99


def test_small_events_are_not_blamed_for_a_batch_that_is_too_large(
    make_topic: MakeTopic,
    make_publisher: MakePublisher,
    consume: Consume,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic(1, {"max.message.bytes": "2000"})
    publisher = make_publisher(topic)
    for _ in range(3):
        outcomes = publisher.publish([make_claim(b"x" * 100) for _ in range(100)])
        assert all(isinstance(outcome, Acked) for outcome in outcomes)
    assert len(consume(topic, 300)) == 300
    assert "lower maxMessageBytes" in caplog.text


def test_oo_33_a_record_that_the_topic_cannot_hold_fails_alone(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(1, {"cleanup.policy": "compact"})  # takes no record without a key
    batch = [make_claim(partition_key=None if n == 5 else "k") for n in range(10)]
    outcomes = make_publisher(topic).publish(batch)
    assert [n for n, o in enumerate(outcomes) if not isinstance(o, Acked)] == [5]
    assert refused(outcomes[5]).error.kind is ErrorClass.EVENT
    assert len(consume(topic, 9)) == 9


def test_oo_33_a_missing_topic_is_tried_again_and_found_once_it_exists(
    make_topic: MakeTopic, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher("created-later")
    began = time.monotonic()
    outcome = refused(publisher.publish([make_claim()])[0])
    assert outcome.error.kind is ErrorClass.TRANSIENT
    assert outcome.error.code in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
    assert time.monotonic() - began < 5, "a missing topic holds up the whole batch"
    make_topic(name="created-later")
    wait_until(
        lambda: isinstance(publisher.publish([make_claim()])[0], Acked), 15, "the topic is found"
    )


def test_a_missing_topic_does_not_fail_events_of_others(
    topic: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher("{event_type}")
    outcomes = publisher.publish(
        [make_claim(event_type=kind) for kind in (topic, "missing-topic", topic)]
    )
    assert [type(outcome) for outcome in outcomes] == [Acked, Refused, Acked]


def of_a_trial(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Empty as long as the first event's topic is parked."""
    return () if isinstance(outcomes[0], Unsent) else outcomes


@pytest.mark.parametrize("in_order", [False, True])
def test_a_topic_that_is_to_blame_is_parked_and_comes_back_by_itself(
    in_order: bool, make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    sick, well = make_topic(), make_topic()
    publisher = make_publisher("{event_type}", in_order=in_order)
    batch = [make_claim(str(n).encode(), event_type=sick, ordering_key="k") for n in range(100)]
    others = [make_claim(event_type=well, ordering_key="other") for _ in range(3)]
    timeout = Refused(Error.of(ErrorClass.OUTAGE, "NO_REPORT", "no acknowledgement"))
    outcomes = publisher.blame(batch, [timeout] * len(batch))
    assert {refused(o).error.kind for o in outcomes} == {ErrorClass.DESTINATION}
    outcomes = publisher.publish([*batch, *others])
    assert [type(o) for o in outcomes] == [Unsent] * 100 + [Acked] * 3
    assert isinstance(outcomes[0], Unsent)
    assert outcomes[0].after > 0
    assert [parked.name for parked in publisher.parked()] == [sick]
    outcomes = wait_until(
        lambda: of_a_trial(publisher.publish([*batch, *others])), 10, "its pause is over"
    )
    parked = [Unsent] * (100 - TRIAL_EVENTS)
    assert [type(o) for o in outcomes] == [Acked] * TRIAL_EVENTS + parked + [Acked] * 3
    assert publisher.parked() == []
    outcomes = publisher.publish(batch[TRIAL_EVENTS:])
    assert {type(o) for o in outcomes} == {Acked}
    assert [m.value for m in consume(sick, 100)] == [c.payload for c in batch]


@pytest.mark.parametrize("in_order", [False, True])
def test_tc_15_a_broker_that_was_stopped_is_an_outage_within_the_timeout(
    in_order: bool,
    topic: str,
    mortal_broker: Kafka,
    make_publisher: MakePublisher,
    impatient: pytest.MonkeyPatch,
) -> None:
    publisher = make_publisher(topic, in_order=in_order, timeout=3)
    assert isinstance(publisher.publish([make_claim(ordering_key="k")])[0], Acked)
    mortal_broker.stop()
    began = time.monotonic()
    outcomes = publisher.publish([make_claim(ordering_key=f"k{n}") for n in range(5)])
    assert time.monotonic() - began < 3 + GRACE
    errors = {(refused(o).error.kind, refused(o).error.code) for o in outcomes}
    assert errors <= {(ErrorClass.OUTAGE, "_MSG_TIMED_OUT"), (ErrorClass.OUTAGE, "NO_REPORT")}
    assert "Connection refused" in refused(outcomes[0]).error.text, "says nothing about the cause"
    with pytest.raises(PublisherError, match="Connection refused"):
        publisher.probe()
    impatient.undo()
    mortal_broker.start()
    publisher.probe()
    wait_until(
        lambda: isinstance(publisher.publish([make_claim(ordering_key="k")])[0], Acked),
        30,
        "the publisher goes on",
    )


@pytest.mark.parametrize("in_order", [False, True])
def test_oo_20_a_broker_that_does_not_answer_gets_nothing_after_the_call_has_ended(
    in_order: bool,
    topic: str,
    frozen_broker: Kafka,
    make_publisher: MakePublisher,
    consume: Consume,
) -> None:
    publisher = make_publisher(topic, in_order=in_order, timeout=2)
    assert isinstance(publisher.publish([make_claim(ordering_key="k")])[0], Acked)
    frozen_broker.pause()
    began = time.monotonic()
    # More than socket buffers hold: the rest is still with the client when the call ends.
    outcomes = publisher.publish([make_claim(b"x" * 900_000, ordering_key="k") for _ in range(30)])
    assert time.monotonic() - began < 2 + GRACE
    assert {type(outcome) for outcome in outcomes} <= {Refused} if not in_order else True
    assert refused(outcomes[0]).error.kind is ErrorClass.OUTAGE
    frozen_broker.resume()
    mark = make_claim(b"mark", ordering_key="k")

    def nothing_comes() -> bool:
        """What the broker has not processed yet would stand between two marks, or after them."""
        marked = [publisher.publish([mark])[0] for _ in range(2)]
        last = [message.value for message in consume(topic)][-2:]
        return all(isinstance(o, Acked) for o in marked) and last == [b"mark", b"mark"]

    wait_until(nothing_comes, 30, "the broker has processed what it got")
    assert sum(message.value != b"mark" for message in consume(topic)) < 31


@pytest.mark.parametrize("in_order", [False, True])
def test_a_broker_killed_in_the_middle_of_a_call_keeps_what_it_acknowledged(
    in_order: bool,
    topic: str,
    mortal_broker: Kafka,
    make_publisher: MakePublisher,
    consume: Consume,
) -> None:
    publisher = make_publisher(topic, in_order=in_order, timeout=4)
    batch = [make_claim(b"x" * 20_000, ordering_key=f"k{n % 50}") for n in range(4000)]
    publisher.publish(batch[:10])
    outcomes: list[Sequence[Outcome]] = []
    took: list[float] = []

    def publish() -> None:
        began = time.monotonic()
        outcomes.append(publisher.publish(batch))
        took.append(time.monotonic() - began)

    thread = threading.Thread(target=publish)
    thread.start()
    # By what is on its disk: a consumer takes so long to connect that all may be there by then.
    log = mortal_broker.folder / "data"
    wait_until(
        lambda: sum(file.stat().st_size for file in log.glob(f"{topic}-*/*.log")) > 20 * 20_000,
        *(20, "the first events of the batch"),
    )
    mortal_broker.kill()
    thread.join(30)
    assert took[0] < 4 + GRACE
    acked = {
        c.event_id.encode() for c, o in zip(batch, outcomes[0], strict=True) if isinstance(o, Acked)
    }
    assert len(acked) < len(batch), "killed too late to prove anything"
    errors = [o.error for o in outcomes[0] if isinstance(o, Refused)]
    assert errors
    assert all(error.kind is ErrorClass.OUTAGE for error in errors)
    mortal_broker.start()
    present = {dict(m.headers)["outbox-event-id"] for m in consume(topic, len(acked))}
    assert acked <= present


def test_a_batch_larger_than_the_clients_queue_goes_out_in_portions(
    topic: str, make_publisher: MakePublisher, consume: Consume
) -> None:
    publisher = make_publisher(topic, config={"queue.buffering.max.messages": 50})
    outcomes = publisher.publish([make_claim() for _ in range(1000)])
    assert all(isinstance(outcome, Acked) for outcome in outcomes)
    assert len(consume(topic, 1000)) == 1000


def test_close_ends_a_call_that_waits_for_the_broker(
    topic: str, frozen_broker: Kafka, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(topic, timeout=60)
    publisher.publish([make_claim()])
    frozen_broker.pause()
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(publisher.publish([make_claim()])))
    thread.start()
    wait_until(lambda: publisher._busy, 5, "the call is under way")
    began = time.monotonic()
    publisher.close(timedelta(seconds=1))
    thread.join(5)
    assert time.monotonic() - began < 1 + GRACE
    assert refused(outcomes[0]).error.kind is ErrorClass.OUTAGE
