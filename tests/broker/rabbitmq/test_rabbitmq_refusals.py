"""Which class each refusal of the real server has, and that it is one event's alone."""

from uuid import uuid4

import pytest

from broker.rabbitmq.publishers import Broker, MakePublisher
from conformance.publisher_contract import make_claim
from dev.services.rabbitmq import GUARDED, LARGEST_MESSAGE_BYTES, MAY_NOT_WRITE, MAY_WRITE_ORDERS
from outbox_core.errors import PublisherError
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent

pytestmark = pytest.mark.rabbitmq

BY_TYPE = "{event_type}"


def kind_of(outcome: Outcome) -> ErrorClass | None:
    return outcome.error.kind if isinstance(outcome, Refused) else None


def code_of(outcome: Outcome) -> str | None:
    return outcome.error.code if isinstance(outcome, Refused) else None


def test_an_event_without_a_queue_is_retried_and_its_neighbours_arrive(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    publisher = make_publisher(BY_TYPE)
    batch = [make_claim(event_type=queue) for _ in range(9)]
    batch.insert(4, make_claim(event_type=f"nobody-{uuid4()}"))
    outcomes = list(publisher.publish(batch))
    lost = outcomes.pop(4)
    assert (kind_of(lost), code_of(lost)) == (ErrorClass.TRANSIENT, "UNROUTABLE")
    assert all(isinstance(o, Acked) for o in outcomes)
    assert len(broker.read(queue, 9)) == 9


def test_a_large_event_without_a_queue_comes_back_and_is_told_from_the_others(
    make_publisher: MakePublisher, queue: str
) -> None:
    nowhere = f"nobody-{uuid4()}"
    batch = [make_claim(b"x" * 400_000, event_type=t) for t in (nowhere, queue, nowhere)]
    outcomes = make_publisher(BY_TYPE).publish(batch)
    assert [code_of(o) for o in outcomes] == ["UNROUTABLE", None, "UNROUTABLE"]


def test_a_full_queue_is_parked_and_others_go_on(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    full = broker.queue(arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    publisher = make_publisher(BY_TYPE)
    first = publisher.publish([make_claim(event_type=full) for _ in range(20)])
    refused = [o for o in first if not isinstance(o, Acked)]
    assert refused
    assert {(kind_of(o), code_of(o)) for o in refused} == {(ErrorClass.DESTINATION, "NACK")}
    for _ in range(2):  # until all that it says is no
        outcomes = publisher.publish([make_claim(event_type=t) for t in (full, queue, full)])
        assert isinstance(outcomes[1], Acked)
        assert not isinstance(outcomes[0], Acked)
    assert [parked.name for parked in publisher.parked()] == [full]


def test_an_exchange_that_does_not_exist_is_an_outage_that_the_probe_sees(
    make_publisher: MakePublisher,
) -> None:
    publisher = make_publisher("k", exchange="nowhere")
    (outcome,) = publisher.publish([make_claim()])
    assert kind_of(outcome) is ErrorClass.OUTAGE
    with pytest.raises(PublisherError, match="no exchange 'nowhere'"):
        publisher.probe()


def test_an_exchange_that_is_deleted_is_an_outage_until_it_is_there_again(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    exchange = broker.exchange(**{queue: "k"})
    publisher = make_publisher("k", exchange=exchange)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    with broker.connect() as connection:
        connection.channel().exchange_delete(exchange)
    outcomes = publisher.publish([make_claim() for _ in range(5)])
    assert {(kind_of(o), code_of(o)) for o in outcomes} == {(ErrorClass.OUTAGE, "NOT_FOUND")}
    assert kind_of(publisher.publish([make_claim()])[0]) is ErrorClass.OUTAGE
    with broker.connect() as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
        channel.queue_bind(queue, exchange, "k")
    assert isinstance(publisher.publish([make_claim()])[0], Acked)


def test_what_is_too_large_for_the_server_is_dead_and_takes_nobody_along(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    publisher = make_publisher(queue, max_message_bytes=2 * LARGEST_MESSAGE_BYTES)
    small = [make_claim(b"s") for _ in range(4)]
    large = make_claim(b"x" * (LARGEST_MESSAGE_BYTES + 1))
    batch = [*small[:2], large, *small[2:]]
    first = publisher.publish(batch)
    assert (kind_of(first[2]), code_of(first[2])) == (ErrorClass.EVENT, "TOO_LARGE")
    assert all(isinstance(o, Unsent) for o in first[3:])
    assert all(isinstance(o, Acked) or kind_of(o) is ErrorClass.OUTAGE for o in first[:2])
    second = publisher.publish(batch)  # now the limit is known
    assert [type(o) for o in second] == [Acked, Acked, Refused, Acked, Acked]


def test_a_key_that_we_may_not_write_costs_its_own_events_attempts_and_no_others(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    with broker.connect() as connection:
        connection.channel().queue_bind(queue, GUARDED, "#")
    publisher = make_publisher(BY_TYPE, exchange=GUARDED, user=MAY_WRITE_ORDERS)
    batch = [make_claim(event_type=t) for t in ("orders.a", "refunds.a", "orders.b")]
    outcomes = publisher.publish(batch)
    assert (kind_of(outcomes[1]), code_of(outcomes[1])) == (ErrorClass.TRANSIENT, "ACCESS_REFUSED")
    assert isinstance(outcomes[2], Unsent)
    assert isinstance(publisher.publish([batch[2]])[0], Acked)


def test_who_may_not_write_at_all_has_an_outage(make_publisher: MakePublisher, queue: str) -> None:
    publisher = make_publisher(queue, user=MAY_NOT_WRITE)
    outcomes = publisher.publish([make_claim() for _ in range(3)])
    assert {(kind_of(o), code_of(o)) for o in outcomes} == {(ErrorClass.OUTAGE, "ACCESS_REFUSED")}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"CC": "other"}, "INVALID_MESSAGE"),
        ({"n" * 256: "v"}, "INVALID_MESSAGE"),
        ([("lone", "\ud800")], "INVALID_MESSAGE"),
        ({"huge": "v" * 140_000}, "HEADERS_TOO_LARGE"),
    ],
    ids=["routing header", "long name", "no text", "more than a frame"],
)
def test_what_would_end_the_channel_is_found_before_it_is_sent(
    make_publisher: MakePublisher, queue: str, headers: dict[str, str], code: str
) -> None:
    batch = [make_claim(), make_claim(headers=headers), make_claim()]
    outcomes = make_publisher(queue).publish(batch)
    assert (kind_of(outcomes[1]), code_of(outcomes[1])) == (ErrorClass.EVENT, code)
    assert isinstance(outcomes[0], Acked)
    assert isinstance(outcomes[2], Acked)
