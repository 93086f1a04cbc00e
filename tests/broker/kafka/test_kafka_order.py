"""Within one call, no event of a key arrives unless all before it did."""

import threading

import pytest

from broker.kafka.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from fixtures.topics import Consume, MakeTopic, Message
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.kafka.publisher import KafkaPublisher

pytestmark = pytest.mark.kafka

SMALL = {"max.message.bytes": "2000"}
APART: dict[str, str | int | bool] = {"batch.num.messages": 1}
"""Every message in a request of its own, so that later ones are on their way already."""


def numbered(messages: list[Message]) -> list[int]:
    return [int((m.value or b"").split(b" ")[0]) for m in messages]


def ten_of_one_key(bad: int, key: str = "k") -> list[Claim]:
    return [
        make_claim(f"{n} ".encode() + b"x" * (5000 if n == bad else 50), ordering_key=key)
        for n in range(10)
    ]


def assert_stopped_at(bad: int, outcomes: list[Outcome]) -> None:
    assert all(isinstance(outcome, Acked) for outcome in outcomes[:bad])
    refused = outcomes[bad]
    assert isinstance(refused, Refused)
    assert refused.error.kind is ErrorClass.EVENT
    assert refused.error.code == "MSG_SIZE_TOO_LARGE"
    assert all(isinstance(outcome, Unsent) for outcome in outcomes[bad + 1 :])


@pytest.mark.parametrize("config", [{}, APART], ids=["together", "apart"])
@pytest.mark.parametrize("used_before", [False, True], ids=["new producer", "used producer"])
@pytest.mark.parametrize("bad", [0, 3, 9])
def test_oo_39_nothing_behind_an_event_that_the_broker_refuses_arrives(
    bad: int,
    used_before: bool,
    config: dict[str, str | int | bool],
    make_topic: MakeTopic,
    make_publisher: MakePublisher,
    consume: Consume,
) -> None:
    topic = make_topic(1, SMALL)
    publisher = make_publisher(topic, in_order=True, config=config)
    before = [0] if used_before else []
    if used_before:
        publisher.publish([make_claim(b"0 before", ordering_key="k")])
    batch = ten_of_one_key(bad)
    assert_stopped_at(bad, list(publisher.publish(batch)))
    assert numbered(consume(topic, bad)) == before + list(range(bad))
    rest = publisher.publish(batch[bad + 1 :])
    assert all(isinstance(outcome, Acked) for outcome in rest)
    expected = before + [n for n in range(10) if n != bad]
    assert numbered(consume(topic, len(expected))) == expected


def test_oo_39_the_same_while_other_partitions_are_busy(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(6, SMALL)
    publisher = make_publisher(topic, in_order=True, config=APART)
    for _ in range(3):
        batch = [
            make_claim(
                f"{n // 20} ".encode() + b"x" * (5000 if n == 20 * 3 + 7 else 50),
                ordering_key=f"k{n % 20}",
            )
            for n in range(200)
        ]
        outcomes = publisher.publish(batch)
        refused = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Refused)]
        assert refused == [67]
        by_key: dict[str | None, list[bool]] = {}
        for claim, outcome in zip(batch, outcomes, strict=True):
            by_key.setdefault(claim.ordering_key, []).append(isinstance(outcome, Acked))
        for arrived in by_key.values():
            assert arrived == sorted(arrived, reverse=True), "a gap within a key"
        assert by_key["k7"] == [True] * 3 + [False] * 7
        sent = {c.event_id for c, o in zip(batch, outcomes, strict=True) if isinstance(o, Acked)}
        present = {dict(m.headers)["outbox-event-id"] for m in consume(topic, len(sent))}
        assert {event_id.encode() for event_id in sent} <= present
        behind = {c.event_id.encode() for c in batch[67 + 20 :: 20]}
        assert not behind & present


def test_without_ordering_only_the_refused_event_is_missing(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(1, SMALL)
    outcomes = make_publisher(topic, config=APART).publish(ten_of_one_key(3))
    assert [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Acked)] == [3]
    assert len(consume(topic, 9)) == 9


@pytest.mark.parametrize("bad", [0, 3])
def test_oo_39_nothing_behind_an_event_that_the_client_refuses_is_sent(
    bad: int, make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(1)
    publisher = make_publisher(topic, in_order=True, max_message_bytes=2000)
    batch = ten_of_one_key(bad)
    other = [make_claim(b"99", ordering_key="other"), make_claim(b"99")]
    outcomes = list(publisher.publish([*batch, *other]))
    assert_stopped_at(bad, outcomes[:10])
    assert all(isinstance(outcome, Acked) for outcome in outcomes[10:])
    assert [n for n in numbered(consume(topic, bad + 2)) if n != 99] == list(range(bad))


def test_oo_39_nothing_behind_an_event_without_a_topic_is_sent(
    topic: str, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher("{event_type}", in_order=True)
    outcomes = publisher.publish(
        [
            make_claim(event_type="no topic", ordering_key="k"),
            make_claim(event_type=topic, ordering_key="k"),
            make_claim(event_type=topic, ordering_key="other"),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [Refused, Unsent, Acked]


def test_in_order_a_topic_that_does_not_exist_costs_only_the_head_of_each_key(
    make_publisher: MakePublisher,
) -> None:
    publisher = make_publisher("no-such-topic-in-order", in_order=True)
    outcomes = publisher.publish([make_claim(ordering_key=f"k{n % 2}") for n in range(6)])
    assert [type(outcome) for outcome in outcomes] == [Refused] * 2 + [Unsent] * 4
    assert isinstance(outcomes[0], Refused)
    assert outcomes[0].error.kind is ErrorClass.TRANSIENT


def test_em_18_batches_of_hot_keys_arrive_in_order(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(6)
    publisher = make_publisher(topic, in_order=True)
    number = 0
    for _ in range(5):
        batch = []
        for _ in range(1000):
            batch.append(make_claim(f"{number} ".encode(), ordering_key=f"k{number % 10}"))
            number += 1
        assert all(isinstance(outcome, Acked) for outcome in publisher.publish(batch))
    by_key: dict[bytes | None, list[int]] = {}
    for message in consume(topic, 5000):
        by_key.setdefault(message.key, []).extend(numbered([message]))
    assert len(by_key) == 10
    for numbers in by_key.values():
        assert numbers == sorted(numbers)
        assert len(numbers) == 500


def test_a_batch_too_large_for_its_topic_still_arrives_whole_and_in_order(
    make_topic: MakeTopic, make_publisher: MakePublisher, consume: Consume
) -> None:
    topic = make_topic(1, SMALL)
    publisher = make_publisher(topic, in_order=True)
    todo = [make_claim(f"{n} ".encode() + b"x" * 100, ordering_key="k") for n in range(60)]
    for _ in range(30):
        outcomes = publisher.publish(todo)
        assert not any(isinstance(outcome, Refused) for outcome in outcomes)
        todo = [c for c, o in zip(todo, outcomes, strict=True) if not isinstance(o, Acked)]
        if not todo:
            break
    assert not todo
    assert numbered(consume(topic, 60)) == list(range(60))


def test_oo_25_a_route_is_promised_only_in_order_and_with_a_key(
    make_publisher: MakePublisher,
) -> None:
    unordered = make_publisher("{event_type}")
    assert unordered.route(make_claim(ordering_key="k")) is None
    ordered = make_publisher("{event_type}", in_order=True)
    assert ordered.route(make_claim()) is None
    assert ordered.route(make_claim(event_type="no topic", ordering_key="k")) is None
    one = ordered.route(make_claim(event_type="a", ordering_key="k"))
    assert one is not None
    assert one == ordered.route(make_claim(event_type="a", ordering_key="k"))
    assert one != ordered.route(make_claim(event_type="b", ordering_key="k"))
    assert one != ordered.route(make_claim(event_type="a", ordering_key="k", partition_key="p"))


def test_a_failed_producer_of_one_thread_does_not_disturb_the_others(
    make_topic: MakeTopic, make_publisher: MakePublisher
) -> None:
    topic = make_topic(3, SMALL)
    publisher = make_publisher(topic, in_order=True)
    failures: list[Outcome] = []

    def steadily(publisher: KafkaPublisher, key: str) -> None:
        for _ in range(20):
            batch = [make_claim(ordering_key=key) for _ in range(3)]
            failures.extend(o for o in publisher.publish(batch) if not isinstance(o, Acked))

    threads = [threading.Thread(target=steadily, args=(publisher, f"good{n}")) for n in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        assert_stopped_at(0, list(publisher.publish(ten_of_one_key(0, "bad"))))
    for thread in threads:
        thread.join()
    assert failures == []
