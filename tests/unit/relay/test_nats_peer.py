"""NATS against a peer that answers as no real server does, or at the worst moment."""

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.publisher_contract import make_claim
from fixtures.nats_peer import Peer, Published, nats_peer
from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused
from outbox_core.model.ordering import KeyOrder
from outbox_relay.publishers.nats.connection import Connection
from outbox_relay.publishers.nats.publisher import FEWEST_EVENTS_IN_BATCH, NatsPublisher

Make = Callable[..., NatsPublisher]

FULL = {"error": {"code": 400, "err_code": 10077, "description": "full"}, "stream": "S", "seq": 0}


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[NatsPublisher] = []

    def publisher(
        peer: Peer, *, in_order: bool = True, timeout: float = 5, **settings: Any
    ) -> NatsPublisher:
        filled = {
            **{"servers": (peer.url,), "delivery_timeout": timedelta(seconds=timeout)},
            **settings,
        }
        made.append(NatsPublisher(NatsSettings(**filled), in_order))
        return made[-1]

    yield publisher
    for each in made:
        each.close(timedelta(0))


class Store:
    """Stores what comes, in atomic batches too, but nothing of the subjects that are full."""

    def __init__(self, *full: str) -> None:
        self.full = full
        self.payloads: list[bytes] = []
        self._batch: list[Published] = []

    def __call__(self, message: Published) -> None:
        self._batch.append(message)
        if not message.reply:
            return
        batch, self._batch = self._batch, []
        if any(m.subject in self.full for m in batch):
            message.answer(FULL)
            return
        self.payloads += [m.payload for m in batch]
        answer: dict[str, object] = {"stream": "S", "seq": len(self.payloads)}
        if name := message.header("Nats-Batch-Id"):
            answer |= {"batch": name, "count": len(batch)}
        message.answer(answer)


def test_an_event_does_not_pass_one_of_its_key_whose_subject_is_parked(make: Make) -> None:
    store = Store("full")
    with nats_peer(store) as peer:
        publisher = make(peer)
        publisher.publish([make_claim(event_type="full"), make_claim(event_type="open")])
        assert [parked.name for parked in publisher.parked()] == ["full"]
        claims = [
            make_claim(b"first", event_type="full", ordering_key="k"),
            make_claim(b"second", event_type="open", ordering_key="k"),
        ]
        order = KeyOrder()
        for wave in order.waves(claims, publisher.route):
            order.saw(wave, publisher.publish(wave))
    assert not {b"first", b"second"} & set(store.payloads)


def test_what_another_call_learns_of_a_stream_does_not_change_the_order_of_this_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    with nats_peer(store, stream_of=lambda subject: subject.upper()) as peer:
        publisher = make(peer)
        publisher.publish([make_claim(event_type="a"), make_claim(event_type="b")])
        streams = publisher._streams
        streams.forget("B")
        asked: list[str] = []

        def then_forget(subject: str) -> str | None:
            """As if the other call came between two looks at the same subject."""
            found = known(subject)
            asked.append(subject)
            if asked.count("a") == 3:
                streams.forget("A")
            return found

        known = streams.atomic_stream
        monkeypatch.setattr(streams, "atomic_stream", then_forget)
        claims = [
            make_claim(b"other", event_type="b"),
            make_claim(b"first", event_type="a", ordering_key="k"),
            make_claim(b"second", event_type="a", ordering_key="k"),
        ]
        assert all(isinstance(outcome, Acked) for outcome in publisher.publish(claims))
    assert store.payloads.index(b"first") < store.payloads.index(b"second")


def refused_as(outcome: Outcome) -> tuple[ErrorClass, str]:
    assert isinstance(outcome, Refused)
    return outcome.error.kind, outcome.error.code


IN_DOUBT = (ErrorClass.OUTAGE, "NO_ANSWER")


def pour(message: Published, data: bytes) -> None:
    """Until the publisher has had enough."""
    while True:
        message.send(data)


def test_a_call_ends_in_time_though_bytes_keep_coming(make: Make) -> None:
    with nats_peer(lambda message: pour(message, b"+OK\r\n" * 10_000)) as peer:
        publisher = make(peer, timeout=1, atomic="Never")
        began = time.monotonic()
        (outcome,) = publisher.publish([make_claim()])
        assert time.monotonic() - began < 3
        assert refused_as(outcome) == IN_DOUBT


def test_a_connection_on_which_bytes_keep_coming_is_not_used_again(make: Make) -> None:
    talking = threading.Event()

    def answer_and_pour(message: Published) -> None:
        message.answer({"stream": "S", "seq": 1})
        if peer.connections == 1:
            message.send(b"PING\r\n" * 50_000)
            talking.set()
            pour(message, b"PING\r\n" * 50_000)

    with nats_peer(answer_and_pour) as peer:
        publisher = make(peer, atomic="Never")
        for _ in range(2):
            (outcome,) = publisher.publish([make_claim()])
            assert isinstance(outcome, Acked)
            assert talking.wait(5)
        assert peer.connections == 2


def endless_line() -> bytes:
    """A message whose size leads back to its own beginning."""
    for pad in range(1, 40):
        for size in range(10, 60):
            line = b"MSG %b 1 -%d" % (b"9" * pad, size)
            if len(line) + 4 == size:
                return line + b"\r\n"
    raise AssertionError("no such line")


def test_a_message_of_negative_size_does_not_hold_the_call(make: Make) -> None:
    with nats_peer(lambda message: message.send(endless_line())) as peer:
        publisher = make(peer, atomic="Never")
        began = time.monotonic()
        (outcome,) = publisher.publish([make_claim()])
        assert time.monotonic() - began < 3
        assert refused_as(outcome) == IN_DOUBT


@pytest.mark.parametrize("seq", [FEWEST_EVENTS_IN_BATCH - 1, "99", -99])
def test_a_batch_is_not_acknowledged_with_a_number_that_it_cannot_have(
    make: Make, seq: object
) -> None:
    def answer(message: Published) -> None:
        if message.reply:
            name = message.header("Nats-Batch-Id")
            message.answer(
                {"stream": "S", "seq": seq, "batch": name, "count": FEWEST_EVENTS_IN_BATCH}
            )

    with nats_peer(answer) as peer:
        outcomes = make(peer).publish([make_claim() for _ in range(FEWEST_EVENTS_IN_BATCH)])
    assert {refused_as(outcome) for outcome in outcomes} == {(ErrorClass.OUTAGE, "NO_BATCH")}


@pytest.mark.parametrize(
    "line",
    [
        *(b"MSG ", b"MSG a 1 x", b"MSG foo.bar 1 2\r\n{}", b"HMSG _INBOX.1 1 zz 2\r\n{}"),
        *(b"MSG _INBOX.9 1 2\r\n{}{}", b"INFO {", b"INFO [1]", b"INFO " + b"[" * 200_000),
        *(b'INFO {"max_payload":null}', b'INFO {"max_payload":0}', b'INFO {"version":"\xc2\xb2"}'),
    ],
)
def test_a_malformed_line_loses_the_connection_and_no_answer_that_came(
    make: Make, line: bytes
) -> None:
    def answer(message: Published) -> None:
        if message.payload == b"answered":
            message.answer({"stream": "S", "seq": 7})
        else:
            message.send(line + b"\r\n")

    with nats_peer(answer) as peer:
        publisher = make(peer, in_order=False, atomic="Never")
        began = time.monotonic()
        acked, lost = publisher.publish([make_claim(b"answered"), make_claim()])
        assert time.monotonic() - began < 3
        assert acked == Acked("S@7")
        assert isinstance(lost, Refused)
        assert isinstance(publisher.publish([make_claim(b"answered")])[0], Acked)
        assert peer.connections == 2


@pytest.mark.parametrize(
    "info",
    [b"INFO {", b"INFO 7", b'INFO {"max_payload":null}', b'INFO {"nonce":"\\ud800"}', b"MSG "],
)
def test_a_malformed_greeting_is_a_server_that_does_not_answer(
    make: Make, tmp_path: Path, info: bytes
) -> None:
    # A seed, so that the nonce is used.
    seed = base64.b32encode(bytes([18 << 3 | 5, 0]) + bytes(32) + bytes(2)).decode()
    (tmp_path / "seed").write_text(seed)
    with nats_peer(info=info + b"\r\n") as peer:
        publisher = make(peer, credentials_file=tmp_path / "seed")
        (outcome,) = publisher.publish([make_claim()])
        assert refused_as(outcome) == (ErrorClass.OUTAGE, "NO_CONNECTION")


@pytest.mark.parametrize("where", ["NAMES", "INFO"])
@pytest.mark.parametrize(
    "body",
    [
        *({"total": 1, "streams": 5}, {"total": 1, "streams": [5]}, {"total": 1, "streams": "S"}),
        *({"total": 1, "streams": ["\ud800"]}, {"config": None}, {"config": [1]}),
        *({"error": "no"}, []),
    ],
)
def test_a_malformed_answer_about_streams_is_none(make: Make, where: str, body: object) -> None:
    with nats_peer(about_streams={where: body}) as peer:
        (outcome,) = make(peer).publish([make_claim()])
        assert isinstance(outcome, Acked)


@pytest.mark.parametrize("number", ["x", None, [1], {}, 10**400])
@pytest.mark.parametrize("name", ["num_replicas", "duplicate_window", "max_msg_size"])
def test_a_check_goes_on_where_a_streams_settings_make_no_sense(
    make: Make, name: str, number: object
) -> None:
    about_streams = {"INFO": {"config": {"allow_atomic": True, name: number}}}
    with nats_peer(about_streams=about_streams) as peer:
        found = make(peer).check([{"event_type": "a"}])
    assert any("replica(s)" in finding.text for finding in found)


def test_a_reason_that_no_database_stores_is_made_storable(make: Make) -> None:
    body = b'{"error":{"err_code":10077,"description":"a\\ud800b"}}'
    with nats_peer(lambda message: message.answer(body)) as peer:
        (outcome,) = make(peer).publish([make_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.error.text == "a?b"


def test_a_credentials_file_that_is_no_text_is_an_outage(make: Make, tmp_path: Path) -> None:
    (tmp_path / "seed").write_bytes(b"\xff\xfe")
    with nats_peer() as peer:
        (outcome,) = make(peer, credentials_file=tmp_path / "seed").publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert "credentialsFile" in outcome.error.text


@pytest.mark.parametrize("first", [b"MSG _INBOX.1 1 4000000000\r\n", b"+"])
def test_a_message_or_a_line_without_end_is_not_kept_in_memory(
    make: Make, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_relay.publishers.nats.connection.MOST_BYTES", 1 << 20)
    poured = 0

    def answer(message: Published) -> None:
        nonlocal poured
        message.send(first)
        while True:
            message.send(b"x" * (1 << 18))
            poured += 1 << 18

    with nats_peer(answer) as peer:
        (outcome,) = make(peer, timeout=5, atomic="Never").publish([make_claim()])
        assert refused_as(outcome) == IN_DOUBT
    assert poured < 30 << 20  # what the buffers of the system take is not ours


def test_a_connection_whose_look_fails_is_given_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Connection) -> bool:
        raise RuntimeError("a defect")

    with nats_peer() as peer:
        publisher = make(peer)
        publisher.publish([make_claim()])
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "is_open", fail)
            with pytest.raises(RuntimeError):
                publisher.publish([make_claim()])
        began = time.monotonic()
        publisher.close(timedelta(0))
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("subject", ["plain", "a\\b", 'a"', "a\\", "größe", "a\U0001f600'"])
def test_a_subject_without_rights_is_recognised_as_the_server_quotes_it(
    make: Make, subject: str
) -> None:
    def deny(message: Published) -> None:
        # As Go's %q does, which escapes what its Unicode does not know yet.
        quoted = message.subject.replace("\\", "\\\\").replace('"', '\\"')
        quoted = quoted.replace("\U0001f600", "\\U0001f600")
        message.send(f"-ERR 'Permissions Violation for Publish to \"{quoted}\"'\r\n".encode())

    with nats_peer(deny) as peer:
        publisher = make(peer, atomic="Never", subject="{aggregate_type}", timeout=2)
        (outcome,) = publisher.publish([make_claim(aggregate_type=subject)])
        assert refused_as(outcome) == (ErrorClass.TRANSIENT, "NATS_403")


def test_a_connection_lost_while_streams_are_asked_for_is_told_with_the_reason(make: Make) -> None:
    def hang_up(_: str) -> str:
        peer.hang_up()
        return "S"

    with nats_peer(stream_of=hang_up) as peer:
        (outcome,) = make(peer).publish([make_claim()])
        assert refused_as(outcome) == (ErrorClass.OUTAGE, "CONNECTION_LOST")
        assert "closed the connection" in str(outcome)


def test_a_name_server_that_does_not_answer_does_not_hold_the_call(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def wait(*_: object, **__: object) -> list[Any]:
        assert over.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    with nats_peer() as peer:
        publisher = make(peer, timeout=1)
        began = time.monotonic()
        (outcome,) = publisher.publish([make_claim()])
        assert time.monotonic() - began < 3
        over.set()
    assert refused_as(outcome) == (ErrorClass.OUTAGE, "NO_CONNECTION")
