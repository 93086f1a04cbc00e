"""Answers that no Redis gives: nothing is acknowledged by them, and nobody reads on behind them."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

import pytest

from broker.redis.servers import MakePublisher
from conformance.publisher_contract import make_claim
from outbox_core.contract.publishers.redis import RedisWait
from outbox_core.errors import PublisherError
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused
from outbox_relay.publishers.redis import wire
from outbox_relay.publishers.redis.transactions import MOST_ENTRIES

pytestmark = pytest.mark.redis

Say = Callable[[str, int], bytes | None]
"""The answer to a command, the how-manieth of its kind on its connection; None: as Redis would."""
Scripted = Callable[[Say], str]

USUAL = {
    "MULTI": b"+OK\r\n",
    "XADD": b"+QUEUED\r\n",
    "EXEC": b"*1\r\n$3\r\n1-1\r\n",
    "WAIT": b":2\r\n",
    "WAITAOF": b"*2\r\n:1\r\n:0\r\n",
}


def read_command(stream: BinaryIO) -> str | None:
    if not (line := stream.readline()):
        return None
    words = []
    for _ in range(int(line[1:])):
        size = int(stream.readline()[1:])
        words.append(stream.read(size + 2)[:-2])
    return words[0].decode()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A server that answers as the test says; the url of it."""
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(body: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=body, daemon=True))
        threads[-1].start()

    def serve(peer: socket.socket, say: Say) -> None:
        times: dict[str, int] = {}
        with suppress(OSError), peer, peer.makefile("rb") as stream:
            while command := read_command(stream):
                times[command] = times.get(command, 0) + 1
                said = say(command, times[command])
                peer.sendall(USUAL.get(command, b"+OK\r\n") if said is None else said)

    def accept(listener: socket.socket, say: Say) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                sockets.append(peer)
                start(lambda peer=peer: serve(peer, say))  # type: ignore[misc]

    def make(say: Say) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)
        start(lambda: accept(listener, say))
        return f"redis://127.0.0.1:{listener.getsockname()[1]}"

    yield make
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
    for thread in threads:
        thread.join(5)


def code(outcome: Outcome) -> str:
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    return outcome.error.code


@pytest.mark.parametrize("extra", [1, 3])
def test_answers_too_many_are_not_taken_for_those_of_the_next_call(
    extra: int, scripted: Scripted, make_publisher: MakePublisher
) -> None:
    def say(command: str, time: int) -> bytes | None:
        return USUAL["EXEC"] + b"+OK\r\n" * extra if command == "EXEC" else None

    publisher = make_publisher("s", url=scripted(say), timeout=1)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    # Another connection: what was left over on the first one is nobody's.
    assert publisher.publish([make_claim()]) == [Acked("s@1-1")]


OUT_OF_STEP = {
    "MULTI is not begun": ("MULTI", b"+QUEUED\r\n"),
    "an entry is not queued": ("XADD", b"+OK\r\n"),
    "an entry is made at once": ("XADD", b"$3\r\n1-1\r\n"),
    "EXEC has no answers": ("EXEC", b"*-1\r\n"),
    "EXEC has too few": ("EXEC", b"*0\r\n"),
    "EXEC has too many": ("EXEC", b"*2\r\n$3\r\n1-1\r\n$3\r\n1-2\r\n"),
    "EXEC has something else": ("EXEC", b"+QUEUED\r\n"),
    "an entry has no id": ("EXEC", b"*1\r\n$-1\r\n"),
    "an id that is none": ("EXEC", b"*1\r\n+OK\r\n"),
    "an id that is no text": ("EXEC", b"*1\r\n$2\r\n\xff\xfe\r\n"),
}


@pytest.mark.parametrize(("command", "said"), OUT_OF_STEP.values(), ids=OUT_OF_STEP)
def test_an_answer_to_something_else_leaves_its_event_in_doubt_and_ends_the_connection(
    command: str, said: bytes, scripted: Scripted, make_publisher: MakePublisher
) -> None:
    url = scripted(lambda asked, time: said if asked == command else None)
    publisher = make_publisher("s", url=url, timeout=2)
    assert code(publisher.publish([make_claim()])[0]) == "OUT_OF_STEP"
    assert publisher._idle == []


def test_no_small_entry_is_dead_because_a_peer_says_that_it_is_too_long(
    scripted: Scripted, make_publisher: MakePublisher
) -> None:
    said = b"-ERR Protocol error: invalid bulk length\r\n"
    url = scripted(lambda asked, time: said if asked == "XADD" else None)
    assert code(make_publisher("s", url=url).publish([make_claim()])[0]) == "OUT_OF_STEP"


def test_a_password_that_a_peer_sends_back_is_in_no_error(
    scripted: Scripted, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "hunter2")
    said = b"-WRONGPASS hunter2 is not it\r\n"
    url = scripted(lambda asked, time: said if asked == "AUTH" else None)
    publisher = make_publisher("s", url=url, password={"env": "REDIS_PASSWORD"})
    (outcome,) = publisher.publish([make_claim()])
    assert code(outcome) == "WRONGPASS"
    assert "hunter2" not in str(outcome)


@pytest.mark.parametrize("command", ["CLIENT", "EXEC"])
@pytest.mark.parametrize("said", [b"%1\r\n*0\r\n+a\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_hiredis_cannot_read_is_an_outage(
    said: bytes, command: str, scripted: Scripted, make_publisher: MakePublisher
) -> None:
    url = scripted(lambda asked, time: said if asked == command else None)
    publisher = make_publisher("s", url=url, timeout=2)
    assert code(publisher.publish([make_claim()])[0]) == "NOT_REDIS"
    assert publisher._idle == []
    with pytest.raises(PublisherError):
        make_publisher("s", url=scripted(lambda asked, time: said)).probe()


@pytest.mark.parametrize("said", [b":0\r\n", b"*1\r\n:1\r\n", b"+OK\r\n", b"$-1\r\n"])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_copies_are_counted_only_by_an_answer_that_counts_them(
    said: bytes, first: bool, scripted: Scripted, make_publisher: MakePublisher
) -> None:
    def say(command: str, time: int) -> bytes | None:
        return said if command.startswith("WAIT") and (time == 1) is first else None

    on_disk = make_publisher("s", url=scripted(say), timeout=2, wait=RedisWait(aof=True))
    assert code(on_disk.publish([make_claim()])[0]) == "OUT_OF_STEP"
    if said != b":0\r\n":  # a number, which is what WAIT answers
        copied = make_publisher("s", url=scripted(say), timeout=2, wait=RedisWait(replicas=2))
        assert code(copied.publish([make_claim()])[0]) == "OUT_OF_STEP"


LISTS = {
    "one that is far too long": b"*500000000\r\n",
    "lists in lists": b"*1000\r\n" * 200,
    "a map": b"%4000000\r\n",
}


@pytest.mark.parametrize("said", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("part", [5, 10_000], ids=["in parts", "at once"])
def test_no_room_is_made_for_a_list_that_redis_would_not_send(
    said: bytes,
    part: int,
    scripted: Scripted,
    make_publisher: MakePublisher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "RECEIVE_BYTES", part)
    url = scripted(lambda asked, time: said if asked == "EXEC" else None)
    publisher = make_publisher("s", url=url, timeout=5)
    (outcome,) = publisher.publish([make_claim()])
    assert code(outcome) == "NOT_REDIS"
    assert isinstance(outcome, Refused)
    assert "does not end" in outcome.error.text


def test_an_answer_without_end_is_given_up_when_it_is_too_large(
    scripted: Scripted, make_publisher: MakePublisher
) -> None:
    def say(command: str, time: int) -> bytes | None:
        return b"$4000000000\r\n" + b"x" * 2_000_000 if command == "EXEC" else None

    publisher = make_publisher("s", url=scripted(say), timeout=5)
    assert code(publisher.publish([make_claim()])[0]) == "NOT_REDIS"


def test_the_largest_answer_that_redis_gives_is_read(
    scripted: Scripted, make_publisher: MakePublisher
) -> None:
    ids = [f"$20\r\n17000000000{n:05}-100\r\n".encode() for n in range(MOST_ENTRIES)]

    def say(command: str, time: int) -> bytes | None:
        return b"*%d\r\n" % len(ids) + b"".join(ids) if command == "EXEC" else None

    publisher = make_publisher("s", url=scripted(say))
    outcomes = publisher.publish([make_claim() for _ in ids])
    assert all(isinstance(outcome, Acked) for outcome in outcomes)


INFO = b"redis_version:7.0.0\r\nconnected_slaves:many\r\nmaxmemory:\xff\r\nrole"
ODD = [
    b":1\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*1\r\n:1\r\n",
    b"*2\r\n:1\r\n:2\r\n",
    b"*2\r\n$4\r\nsave\r\n$-1\r\n",
    b"*3\r\n+a\r\n+b\r\n+c\r\n",
    b"$2\r\n\xff\xfe\r\n",
    b"$%d\r\n%b\r\n" % (len(INFO), INFO),
    b"*2\r\n$21\r\nmin-replicas-to-write\r\n$4\r\nmany\r\n",
]


@pytest.mark.parametrize("said", ODD)
@pytest.mark.parametrize("command", ["INFO", "CONFIG", "TYPE", "XLEN", "MULTI", "DISCARD", "WAIT"])
def test_the_check_has_a_result_whatever_answers(
    command: str, said: bytes, scripted: Scripted, make_publisher: MakePublisher
) -> None:
    usual = {"TYPE": b"+stream\r\n", "XLEN": b":3\r\n", "CONFIG": b"*0\r\n", "INFO": b"$0\r\n\r\n"}
    url = scripted(lambda asked, time: said if asked == command else usual.get(asked))
    wait = RedisWait(replicas=2)
    sample = {"event_type": "s", "aggregate_type": None, "tenant_id": None}
    results = make_publisher("{event_type}", url=url, wait=wait).check([sample])
    assert results
    assert all(result.level in ("ok", "warn", "fail") and result.text for result in results)


@pytest.mark.parametrize("command", ["INFO", "TYPE", "XLEN"])
def test_the_check_fails_where_an_answer_makes_no_sense(
    command: str, scripted: Scripted, make_publisher: MakePublisher
) -> None:
    usual = {"TYPE": b"+stream\r\n", "CONFIG": b"*0\r\n", "INFO": b"$0\r\n\r\n"}
    nonsense = b"*1\r\n:1\r\n"
    url = scripted(lambda asked, time: nonsense if asked == command else usual.get(asked))
    sample = {"event_type": "s", "aggregate_type": None, "tenant_id": None}
    (result,) = make_publisher("{event_type}", url=url).check([sample])
    assert result.level == "fail"
    assert "not asked" in result.text
