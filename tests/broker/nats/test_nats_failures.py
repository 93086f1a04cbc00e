"""What becomes of events when the server refuses, is full, freezes, dies or loses the answer."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from broker.nats.conftest import MakePublisher
from broker.nats.streams import Admin
from conformance.publisher_contract import make_claim
from dev.services import Nats, wait_until
from fixtures.peers import listening, to_server
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_core.model.ordering import BEHIND
from outbox_relay.publishers.nats.publisher import FEWEST_EVENTS_IN_BATCH

pytestmark = pytest.mark.nats


def batch_of(n: int, **fields: Any) -> list[Claim]:
    return [make_claim(str(i).encode(), **fields) for i in range(n)]


def kinds(outcomes: Sequence[Outcome]) -> list[ErrorClass | None]:
    """None for what was acknowledged."""
    assert not any(isinstance(o, Unsent) for o in outcomes)
    return [o.error.kind if isinstance(o, Refused) else None for o in outcomes]


def codes(outcomes: Sequence[Outcome]) -> set[str]:
    return {o.error.code for o in outcomes if isinstance(o, Refused)}


def batches_of(admin: Admin, stream: str) -> set[str]:
    found = [dict(m.headers).get("Nats-Batch-Id") for m in admin.received(stream)]
    return {value.decode() for value in found if value}


def test_a_call_is_one_atomic_batch_where_the_stream_allows_it(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    outcomes = make_publisher(subject=f"{stream}.{{event_type}}").publish(batch_of(1200))
    assert outcomes == [Acked(f"{stream}@{n}") for n in range(1, 1201)]
    assert len(batches_of(admin, stream)) == 2  # a batch has 1000 at most


@pytest.mark.parametrize("in_order", [False, True])
def test_a_few_events_go_by_themselves_unless_some_would_wait_for_others(
    admin: Admin, make_publisher: MakePublisher, in_order: bool
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", in_order=in_order)
    different = [
        make_claim(b"%d" % i, ordering_key=f"k{i}") for i in range(FEWEST_EVENTS_IN_BATCH - 1)
    ]
    assert kinds(publisher.publish(different)) == [None] * len(different)
    assert batches_of(admin, stream) == set()
    assert kinds(publisher.publish(batch_of(5, ordering_key="k"))) == [None] * 5
    assert len(batches_of(admin, stream)) == (1 if in_order else 0)
    assert (
        kinds(publisher.publish(batch_of(FEWEST_EVENTS_IN_BATCH)))
        == [None] * FEWEST_EVENTS_IN_BATCH
    )
    assert len(batches_of(admin, stream)) == (2 if in_order else 1)


@pytest.mark.parametrize("why", ["the stream does not allow it", "nobody wants it"])
def test_events_go_by_themselves_without_atomic_batches(
    admin: Admin, make_publisher: MakePublisher, why: str
) -> None:
    stream = admin.make(allow_atomic=why == "nobody wants it")
    atomic = "Never" if why == "nobody wants it" else "Auto"
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", atomic=atomic, in_order=True)
    claims = batch_of(50)
    assert kinds(publisher.publish(claims)) == [None] * 50
    assert batches_of(admin, stream) == set()
    assert publisher.route(claims[0]) is None


def test_a_stream_that_no_longer_allows_batches_gets_single_events(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", in_order=True)
    (claim, *_) = claims = batch_of(10)
    assert kinds(publisher.publish(claims)) == [None] * 10
    assert publisher.route(claim) == (stream, f"{stream}.{claim.event_type}")
    admin.configure("UPDATE", stream, (f"{stream}.>",), {"allow_atomic": False})
    assert kinds(publisher.publish(batch_of(10, ordering_key="k"))) == [None] * 10
    assert publisher.route(claim) is None
    assert len(admin.received(stream)) == 20


def test_a_duplicate_in_a_batch_is_acknowledged_and_stored_once(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", in_order=True)
    claims = batch_of(20, ordering_key="k")
    publisher.publish(claims[:7])
    again = [claim._replace(attempts=2) for claim in claims[:7]] + claims[7:]
    assert publisher.publish(again) == [Acked(f"{stream}@{n}") for n in range(1, 21)]
    assert [m.payload for m in admin.received(stream)] == [c.payload for c in claims]


def test_one_event_that_the_stream_refuses_does_not_fail_its_batch(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make(max_msg_size=5000)
    claims = batch_of(29)
    claims.insert(4, make_claim(b"x" * 6000))
    outcomes = make_publisher(subject=f"{stream}.{{event_type}}").publish(claims)
    assert kinds(outcomes) == [None] * 4 + [ErrorClass.EVENT] + [None] * 25
    assert codes(outcomes) == {"NATS_10054"}
    assert len(admin.received(stream)) == 29


def test_in_order_nothing_of_a_key_arrives_behind_a_refused_event(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make(max_msg_size=5000)
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", in_order=True)
    publisher.publish(batch_of(1))
    claims = batch_of(6, ordering_key="k") + batch_of(2, ordering_key="other")
    claims[2] = claims[2]._replace(payload=b"x" * 6000)
    outcomes = publisher.publish(claims)
    assert kinds(outcomes[:3]) == [None, None, ErrorClass.EVENT]
    assert outcomes[3:6] == [BEHIND] * 3
    assert kinds(outcomes[6:]) == [None, None]
    assert [m.payload for m in admin.received(stream)] == [b"0", b"0", b"0", b"1", b"1"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"event_type": "a b"}, "INVALID_SUBJECT"),
        ({"event_type": "a..b"}, "INVALID_SUBJECT"),
        ({"event_type": "a.*"}, "INVALID_SUBJECT"),
        ({"event_type": "a\r\nPUB x 0\r\n\r\n"}, "INVALID_SUBJECT"),
        ({"event_type": "x" * 2000}, "INVALID_SUBJECT"),
        ({"correlation_id": "a\r\nNats-Rollup: all"}, "INVALID_HEADER"),
        ({"headers": {"region": "eu\nx: y"}}, "INVALID_HEADER"),
        ({"headers": {"a b": "c"}}, "INVALID_HEADER"),
        ({"headers": {"a:b": "c"}}, "INVALID_HEADER"),
        ({"headers": {"nats-rollup": "all"}}, "RESERVED_HEADER"),
        ({"payload": b"x" * 1_000_001}, "MESSAGE_TOO_LARGE"),
        ({"headers": {"long": "x" * 70_000}}, "NATS_10097"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_can_never_work_is_refused_and_the_connection_stays(
    admin: Admin, make_publisher: MakePublisher, fields: dict[str, Any], code: str
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}")
    claims = [*batch_of(3), make_claim(**fields), *batch_of(3)]
    outcomes = publisher.publish(claims)
    assert kinds(outcomes) == [None] * 3 + [ErrorClass.EVENT] + [None] * 3
    assert codes(outcomes) == {code}
    assert len(admin.received(stream)) == 6


def test_a_message_above_the_servers_limit_is_refused_before_it_is_sent(
    nats: Nats, admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", max_message_bytes=5_000_000)
    nearly = make_claim(b"x" * 1_048_150)  # the headers of a batch would not fit any more
    claims = [make_claim(), nearly, make_claim(b"x" * 1_048_577)]
    outcomes = publisher.publish(claims)
    assert kinds(outcomes) == [None, None, ErrorClass.EVENT]
    assert "max_payload is 1048576" in str(outcomes[2])


def test_the_names_of_the_server_are_no_subjects(make_publisher: MakePublisher) -> None:
    publisher = make_publisher()
    outcomes = publisher.publish([make_claim(event_type="$JS.API.STREAM.DELETE.s1")])
    assert kinds(outcomes) == [ErrorClass.EVENT]


def test_a_subject_without_a_stream_is_retried_at_the_events_expense(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject="{event_type}")
    claims = [make_claim(event_type=f"{stream}.a"), make_claim(event_type="nobody.has.it")]
    outcomes = publisher.publish(claims)
    assert kinds(outcomes) == [None, ErrorClass.TRANSIENT]
    assert codes(outcomes) == {"NO_STREAM"}


def test_another_stream_than_expected_is_retried_at_the_events_expense(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream, other = admin.make(), admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", stream=other)
    outcomes = publisher.publish(batch_of(3))
    assert kinds(outcomes) == [ErrorClass.TRANSIENT] * 3
    assert codes(outcomes) == {"NATS_10060"}
    assert admin.received(stream) == []


def test_a_full_stream_is_parked_while_others_go_on(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    full, other = admin.make(max_msgs=5, discard="new"), admin.make()
    publisher = make_publisher(subject="{event_type}")
    claims = batch_of(8, event_type=f"{full}.a") + batch_of(4, event_type=f"{other}.a")
    outcomes = publisher.publish(claims)
    assert kinds(outcomes) == [None] * 5 + [ErrorClass.DESTINATION] * 3 + [None] * 4
    assert codes(outcomes) == {"NATS_10077"}
    assert (
        kinds(publisher.publish(batch_of(3, event_type=f"{full}.a")))
        == [ErrorClass.DESTINATION] * 3
    )
    assert [p.name for p in publisher.parked()] == [f"{full}.a"]


def test_a_sealed_stream_is_retried_at_the_events_expense(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    admin.configure("UPDATE", stream, (f"{stream}.>",), {"sealed": True})
    outcomes = make_publisher(subject=f"{stream}.{{event_type}}").publish(batch_of(3))
    assert kinds(outcomes) == [ErrorClass.TRANSIENT] * 3
    assert codes(outcomes) == {"NATS_10109"}


def test_a_frozen_server_costs_one_deadline_and_nothing_is_acknowledged(
    frozen_nats: Nats, admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", timeout=2)
    assert kinds(publisher.publish(batch_of(2))) == [None, None]
    frozen_nats.pause()
    began = time.monotonic()
    # More than the buffers between the two take: the server does not even read.
    claims = [make_claim(b"x" * 800_000) for _ in range(30)]
    outcomes = publisher.publish(claims)
    assert 1.9 < time.monotonic() - began < 4
    assert not any(isinstance(o, Acked) for o in outcomes)
    refused = [o for o in outcomes if isinstance(o, Refused)]
    assert refused
    assert {o.error.kind for o in refused} == {ErrorClass.OUTAGE}
    frozen_nats.resume()
    again = [claim._replace(attempts=2) for claim in claims]
    wait_until(
        lambda: all(isinstance(o, Acked) for o in publisher.publish(again)), 20, "all are there"
    )
    assert len(admin.received(stream)) == 32


def test_events_of_a_killed_server_arrive_once_after_it_is_back(
    mortal_nats: Nats, admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", timeout=5)
    batches = [batch_of(300) for _ in range(40)]
    outcomes: list[Sequence[Outcome]] = []
    running = threading.Event()

    def publish_all() -> None:
        for n, batch in enumerate(batches):
            outcomes.append(publisher.publish(batch))
            if n == 5:
                running.set()

    thread = threading.Thread(target=publish_all)
    thread.start()
    assert running.wait(30)
    mortal_nats.kill()
    thread.join(60)
    mortal_nats.start()
    flat = [o for part in outcomes for o in part]
    failed = [o for o in flat if not isinstance(o, Acked)]
    assert failed
    assert all(isinstance(o, Refused) and o.error.kind is ErrorClass.OUTAGE for o in failed)
    claims = [c for batch in batches for c in batch]
    acked = {c.event_id for c, o in zip(claims, flat, strict=True) if isinstance(o, Acked)}
    stored = [m.header("outbox-event-id") for m in admin.received(stream)]
    assert acked <= set(stored)  # nothing that was acknowledged is lost
    rest = [c._replace(attempts=2) for c in claims if c.event_id not in acked]
    assert kinds(publisher.publish(rest)) == [None] * len(rest)
    stored = [m.header("outbox-event-id") for m in admin.received(stream)]
    assert sorted(stored) == sorted(c.event_id for c in claims)


@pytest.mark.parametrize("atomic", ["Auto", "Never"])
def test_an_answer_that_is_lost_leaves_events_in_doubt_and_sends_no_copy(
    nats: Nats, admin: Admin, make_publisher: MakePublisher, atomic: str
) -> None:
    stream = admin.make()
    losing = threading.Event()

    def passes(data: bytes) -> bool:
        if b'"seq"' in data and losing.is_set():
            losing.clear()
            return False
        return True

    with listening(to_server(nats.port, to_client=passes)) as host:
        servers = (f"nats://{host}",)
        publisher = make_publisher(
            subject=f"{stream}.{{event_type}}", servers=servers, atomic=atomic, timeout=5
        )
        assert kinds(publisher.publish(batch_of(1))) == [None]
        losing.set()
        claims = batch_of(20)
        outcomes = publisher.publish(claims)
        assert ErrorClass.OUTAGE in kinds(outcomes)
        assert codes(outcomes) == {"NO_ANSWER"}
        again = [claim._replace(attempts=2) for claim in claims]
        assert kinds(publisher.publish(again)) == [None] * 20
    assert len(admin.received(stream)) == 21


def test_a_connection_that_is_cut_in_the_middle_of_a_batch_stores_nothing_of_it(
    nats: Nats, admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()

    def passes(data: bytes) -> bool:
        return b"Nats-Batch-Commit" not in data

    with listening(to_server(nats.port, passes)) as host:
        servers = (f"nats://{host}",)
        publisher = make_publisher(subject=f"{stream}.{{event_type}}", servers=servers, timeout=5)
        outcomes = publisher.publish([make_claim(b"x" * 1000) for _ in range(500)])
        assert kinds(outcomes) == [ErrorClass.OUTAGE] * 500
    assert admin.received(stream) == []


def test_a_server_that_sends_a_byte_at_a_time_is_given_up_in_time(
    make_publisher: MakePublisher,
) -> None:
    over = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            client, _ = listener.accept()
            with client:
                while not over.wait(0.05):
                    client.sendall(b"I")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle)
        thread.start()
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        outcomes = make_publisher(servers=(url,), timeout=1).publish(batch_of(3))
        assert 0.9 < time.monotonic() - began < 2
        assert kinds(outcomes) == [ErrorClass.OUTAGE] * 3
        over.set()
        thread.join(5)


def test_a_connection_that_is_lost_before_anything_was_sent_is_an_outage(
    nats: Nats, admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()

    def passes(data: bytes) -> bool:
        return b"STREAM.NAMES" not in data

    with listening(to_server(nats.port, passes)) as host:
        servers = (f"nats://{host}",)
        publisher = make_publisher(subject=f"{stream}.{{event_type}}", servers=servers, timeout=5)
        outcomes = publisher.publish(batch_of(3))
        assert kinds(outcomes) == [ErrorClass.OUTAGE] * 3
        assert codes(outcomes) == {"CONNECTION_LOST"}


def test_the_next_server_is_used_if_one_is_away(
    nats: Nats, admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    for _ in range(3):  # the order is one of chance
        publisher = make_publisher(
            subject=f"{stream}.{{event_type}}", servers=("nats://127.0.0.1:1", nats.url)
        )
        assert kinds(publisher.publish(batch_of(2))) == [None, None]
        publisher.probe()


def test_a_connection_that_the_server_closed_while_it_was_idle_is_replaced(
    mortal_nats: Nats, admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    publisher = make_publisher(subject=f"{stream}.{{event_type}}", timeout=5)
    assert kinds(publisher.publish(batch_of(2))) == [None, None]
    mortal_nats.restart()
    assert kinds(publisher.publish(batch_of(2))) == [None, None]
