"""Whose fault a failure is, by what a mail server says or fails to say."""

import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from broker.smtp.mail import SENDER, Mailbox, MakeMailbox, MakePublisher, letter
from broker.smtp.scripted import ScriptedServer, gone, scripted
from dev.services import Exim, wait_until
from dev.services.process import free_port
from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.errors import PublisherError
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused, Unsent
from outbox_relay.publishers.smtp.publisher import SmtpPublisher

pytestmark = pytest.mark.smtp


def failure(outcome: Outcome) -> tuple[ErrorClass, str]:
    assert isinstance(outcome, Refused), outcome
    return outcome.error.kind, outcome.error.code


# A real server ----------------------------------------------------------------------------------


def test_every_refusal_of_an_event_leaves_its_neighbours_alone(
    mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    good = mailbox.address
    batch = [
        letter(good),
        letter("nobody@example.test"),
        letter("later@example.test"),
        letter([good, "later@example.test"]),
        letter(good, "SPAM"),
        letter(good, "BUSY"),
        letter("a@elsewhere.test"),
        letter(good, claim_attempts=2),
    ]
    publisher = make_publisher(connections=1, allowed_recipient_domains=("*",))
    outcomes = publisher.publish(batch)
    assert isinstance(outcomes[0], Acked)
    assert isinstance(outcomes[-1], Acked)
    assert [failure(o) for o in outcomes[1:-1]] == [
        (ErrorClass.EVENT, "SMTP_550"),
        (ErrorClass.TRANSIENT, "SMTP_451"),
        (ErrorClass.TRANSIENT, "SMTP_451"),
        (ErrorClass.EVENT, "SMTP_550"),
        (ErrorClass.TRANSIENT, "SMTP_451"),
        (ErrorClass.EVENT, "SMTP_550"),
    ]
    assert len(mailbox.wait_for(2)) == 2


def test_ce_13_a_message_goes_to_those_whom_the_server_takes_and_the_result_names_the_others(
    mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    claim = letter([mailbox.address, "nobody@example.test"])
    (outcome,) = make_publisher().publish([claim])
    assert isinstance(outcome, Acked)
    assert outcome.result.startswith("250 OK id=")
    assert "refused: nobody@example.test (550 no such user)" in outcome.result
    mailbox.wait_for(1)


def test_ce_33_every_recipient_gets_it_and_nobody_sees_bcc(
    make_mailbox: MakeMailbox, make_publisher: MakePublisher
) -> None:
    to, cc, bcc = make_mailbox(), make_mailbox(), make_mailbox()
    (outcome,) = make_publisher().publish([letter(to.address, cc=cc.address, bcc=bcc.address)])
    assert isinstance(outcome, Acked)
    for box in (to, cc, bcc):
        (message,) = box.wait_for(1)
        assert message["To"] == to.address
        assert message["Bcc"] is None
        assert message["Return-path"] == f"<{SENDER}>"
    assert bcc.address not in to.wait_for(1)[0].as_string()


def test_a_message_larger_than_the_server_takes_is_refused_before_it_is_sent(
    mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(max_message_bytes=10_000_000)
    (outcome,) = publisher.publish([letter(mailbox.address, body="x" * 3_100_000)])
    assert failure(outcome) == (ErrorClass.EVENT, "MESSAGE_TOO_LARGE")


def test_a_sender_of_the_settings_that_is_refused_is_not_the_events_fault(
    mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    forbidden = "forbidden@example.test"
    publisher = make_publisher(sender=forbidden)
    (outcome,) = publisher.publish([letter(mailbox.address)])
    assert failure(outcome) == (ErrorClass.TRANSIENT, "SMTP_550")
    assert ("fail", "set another sender") in [(r.level, r.cure) for r in publisher.check([])]
    (outcome,) = make_publisher(allow_sender_from_event=True).publish(
        [letter(mailbox.address, **{"from": forbidden})]
    )
    assert failure(outcome) == (ErrorClass.EVENT, "SMTP_550")


def test_a_server_that_is_away_is_an_outage_until_it_is_back(
    exim: Exim, mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(timeout=5)
    assert isinstance(publisher.publish([letter(mailbox.address)])[0], Acked)
    exim.kill()
    batch = [letter(mailbox.address) for _ in range(10)]
    outcomes = publisher.publish(batch)
    assert {failure(o)[0] for o in outcomes} == {ErrorClass.OUTAGE}
    with pytest.raises(PublisherError, match="does not answer"):
        publisher.probe()
    exim.start()
    publisher.probe()
    assert all(isinstance(o, Acked) for o in publisher.publish(batch))
    mailbox.wait_for(11)


def test_killed_in_the_middle_of_a_batch_what_was_acknowledged_is_there(
    exim: Exim, mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(timeout=10)
    batch = [letter(mailbox.address) for _ in range(400)]
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.extend(publisher.publish(batch)))
    thread.start()
    mailbox.wait_for(20)
    exim.kill()
    thread.join(20)
    assert len(found) == 400
    acked = {c.event_id for c, o in zip(batch, found, strict=True) if isinstance(o, Acked)}
    kinds = {failure(o)[0] for o in found if not isinstance(o, Acked)}
    assert 20 <= len(acked) < 400
    assert kinds <= {ErrorClass.OUTAGE, ErrorClass.TRANSIENT}
    doubtful = [o for o in found if isinstance(o, Refused) and o.error.code == "IN_DOUBT"]
    assert len(doubtful) <= 4  # one for each connection
    exim.start()  # what it took before it was killed is delivered by its queue's next run
    exim.run_queue()
    arrived = mailbox.wait_for(len(acked))
    assert acked <= {str(m["X-Outbox-Event-Id"]) for m in arrived}


def test_frozen_in_the_middle_of_a_batch_the_call_ends_in_time(
    exim: Exim, mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(timeout=3)
    batch = [letter(mailbox.address) for _ in range(2000)]
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.extend(publisher.publish(batch)))
    begin = time.monotonic()
    thread.start()
    mailbox.wait_for(5)
    exim.pause()
    thread.join(20)
    assert time.monotonic() - begin < 5
    assert isinstance(found[0], Acked)
    assert sum(isinstance(o, Refused) for o in found) <= 4
    assert isinstance(found[-1], Unsent)


# A server that misbehaves -----------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted() as made:
        yield made


@pytest.fixture
def made(server: ScriptedServer) -> Iterator[list[SmtpPublisher]]:
    publishers: list[SmtpPublisher] = []
    yield publishers
    for publisher in publishers:
        publisher.close(timedelta(seconds=0))


class Make:
    def __init__(self, server: ScriptedServer, made: list[SmtpPublisher]) -> None:
        self._server, self._made = server, made

    def __call__(self, timeout: float = 5, **settings: Any) -> SmtpPublisher:
        filled = {
            "host": "127.0.0.1",
            "port": self._server.port,
            "start_tls": "None",
            "sender": SENDER,
            "allowed_recipient_domains": ("example.test",),
            "delivery_timeout": timedelta(seconds=timeout),
            **settings,
        }
        self._made.append(SmtpPublisher(SmtpSettings(**filled)))
        return self._made[-1]


@pytest.fixture
def make(server: ScriptedServer, made: list[SmtpPublisher]) -> Make:
    return Make(server, made)


ONE = "a@example.test"


@pytest.mark.parametrize(
    ("in_doubt", "kind"), [("Resend", ErrorClass.TRANSIENT), ("Hold", ErrorClass.EVENT)]
)
@pytest.mark.parametrize("loss", ["cut", "silence"])
def test_an_answer_lost_after_the_message_is_in_doubt(
    server: ScriptedServer, make: Make, in_doubt: str, kind: ErrorClass, loss: str
) -> None:
    server.script["DOT"] = gone if loss == "cut" else server.silent
    (outcome,) = make(timeout=1, in_doubt=in_doubt).publish([letter(ONE)])
    assert len(server.taken) == 1
    assert failure(outcome) == (kind, "IN_DOUBT")


@pytest.mark.parametrize("moment", ["CONNECT", "MAIL", "RCPT", "DATA"])
@pytest.mark.parametrize("pipelining", [True, False])
def test_a_connection_lost_before_the_message_is_an_outage(
    server: ScriptedServer, make: Make, moment: str, pipelining: bool
) -> None:
    if not pipelining:
        server.extensions = []
    server.script[moment] = gone
    outcomes = make(in_doubt="Hold").publish([letter(ONE), letter(ONE)])
    assert {failure(o)[0] for o in outcomes} == {ErrorClass.OUTAGE}
    assert server.taken == []


@pytest.mark.parametrize("moment", ["CONNECT", "MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize(
    ("reply", "kind"),
    [("421 closing", ErrorClass.OUTAGE), ("451 later", ErrorClass.TRANSIENT)],
)
def test_what_is_temporary_never_ends_an_event(
    server: ScriptedServer, make: Make, moment: str, reply: str, kind: ErrorClass
) -> None:
    server.script[moment] = lambda: reply
    (outcome,) = make().publish([letter(ONE)])
    # Before it has greeted us, it is no event's fault in any case.
    assert failure(outcome)[0] is (ErrorClass.OUTAGE if moment == "CONNECT" else kind)
    server.script.clear()
    assert isinstance(make().publish([letter(ONE)])[0], Acked)


@pytest.mark.parametrize(
    ("moment", "reply", "kind"),
    [
        ("MAIL", "530 authentication required", ErrorClass.OUTAGE),
        ("MAIL", "552 too large", ErrorClass.EVENT),
        ("MAIL", "550 sender", ErrorClass.TRANSIENT),
        ("RCPT", "550 no such user", ErrorClass.EVENT),
        ("RCPT", "552 too many recipients", ErrorClass.TRANSIENT),
        ("DATA", "554 no", ErrorClass.EVENT),
        ("DOT", "554 spam", ErrorClass.EVENT),
        ("DOT", "nonsense", ErrorClass.OUTAGE),
    ],
)
def test_each_answer_has_its_class(
    server: ScriptedServer, make: Make, moment: str, reply: str, kind: ErrorClass
) -> None:
    server.script[moment] = lambda: reply
    (outcome,) = make().publish([letter(ONE)])
    assert failure(outcome)[0] is kind


@pytest.mark.parametrize("size", ["\u00b2", "9" * 5000, "0", "", "-1", "many"])
def test_a_limit_of_the_servers_that_is_none_is_left_alone(
    server: ScriptedServer, make: Make, size: str
) -> None:
    server.extensions = ["test", f"SIZE {size}"]  # the first line is the server's name
    publisher = make()
    assert isinstance(publisher.publish([letter(ONE)])[0], Acked)
    assert not any("at most" in result.text for result in publisher.check([]))


def test_a_server_that_sends_a_byte_at_a_time_does_not_hold_the_call(
    server: ScriptedServer, make: Make
) -> None:
    def trickle() -> str:
        sock = server._sockets[-1]
        while not server.stopped.wait(0.1):
            sock.sendall(b"2")
        return gone()

    server.script["CONNECT"] = trickle
    publisher = make(timeout=1, connections=1)
    begin = time.monotonic()
    outcomes = publisher.publish([letter(ONE) for _ in range(3)])
    assert time.monotonic() - begin < 2.5
    assert failure(outcomes[0])[0] is ErrorClass.OUTAGE
    assert not any(isinstance(o, Acked) for o in outcomes)
    with pytest.raises(PublisherError):
        publisher.probe()
    assert time.monotonic() - begin < 4


@pytest.mark.parametrize("moment", ["CONNECT", "MAIL", "DOT"])
def test_a_reply_without_end_is_not_read_to_it(
    server: ScriptedServer, make: Make, moment: str
) -> None:
    """As much memory as comes within the timeout, otherwise."""

    def flood() -> str:
        while not server.stopped.is_set():
            server._sockets[-1].sendall(b"250-and more\r\n" * 100)
        return gone()

    server.script[moment] = flood
    publisher = make(timeout=60, connections=1, in_doubt="Hold")
    begin = time.monotonic()
    (outcome,) = publisher.publish([letter(ONE)])
    assert time.monotonic() - begin < 30
    kind, _ = failure(outcome)
    assert kind is (ErrorClass.EVENT if moment == "DOT" else ErrorClass.OUTAGE)
    assert "a reply of more than 64000 bytes" in str(outcome)


def test_a_resolver_that_hangs_does_not_hold_anybody(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def hang(*args: Any, **kwargs: Any) -> Any:
        over.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    publisher = make(timeout=1, host="mail.example.test")
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        begin = time.monotonic()
        outcomes = publisher.publish([letter(ONE) for _ in range(3)])
        assert time.monotonic() - begin < 1.8  # and not later by what is for threads to end
        assert {failure(outcome)[0] for outcome in outcomes} == {ErrorClass.OUTAGE}
        with pytest.raises(PublisherError, match="not resolved in time"):
            publisher.probe()
        assert [result.level for result in publisher.check([])] == ["fail"]
        assert time.monotonic() - begin < 5
    finally:
        over.set()


def test_a_server_that_stops_reading_does_not_hold_the_call(
    server: ScriptedServer, make: Make
) -> None:
    server.extensions = ["SIZE 100000000"]
    reading = threading.Event()

    def go_on_and_read_nothing() -> str:
        server._sockets[-1].sendall(b"354 go on\r\n")
        reading.set()
        return server.silent()

    server.script["DATA"] = go_on_and_read_nothing
    publisher = make(timeout=3, max_message_bytes=90_000_000, in_doubt="Hold")
    # More than the network holds.
    large = {"filename": "x", "content_base64": b64encode(bytes(12_000_000)).decode()}
    begin = time.monotonic()
    (outcome,) = publisher.publish([letter(ONE, attachments=[large])])
    assert reading.is_set()
    assert time.monotonic() - begin < 4.5
    # The dot never left: so nobody has it, and it is not in doubt.
    assert failure(outcome)[0] is ErrorClass.OUTAGE


def test_a_connection_is_used_again_within_and_between_calls(
    server: ScriptedServer, make: Make
) -> None:
    publisher = make(connections=1)
    for _ in range(3):
        assert all(isinstance(o, Acked) for o in publisher.publish([letter(ONE)] * 5))
    assert server.connections == 1
    assert len(server.taken) == 15


def test_there_are_never_more_connections_than_allowed(server: ScriptedServer, make: Make) -> None:
    publisher = make(connections=3)
    threads = [
        threading.Thread(target=publisher.publish, args=([letter(ONE) for _ in range(20)],))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.taken) == 160
    assert server.connections <= 3


def greeter(refuse: Callable[[], str]) -> Callable[[], str]:
    """Lets one connection in. By a number that each takes once: how many connections there are
    changes while a session is about to look."""
    numbers = count()
    return lambda: "220 test" if next(numbers) == 0 else refuse()


@pytest.mark.parametrize("late", [False, True], ids=["refused at once", "refused late"])
def test_a_server_that_allows_fewer_connections_gets_everything_over_those(
    server: ScriptedServer, make: Make, late: bool
) -> None:
    publisher = make(timeout=20, connections=4)

    def refuse() -> str:
        if late:  # when the one that was let in has nothing left to do
            wait_until(lambda: publisher._idle, 10, "the end of what the other could take")
        return "421 too many connections"

    server.script["CONNECT"] = greeter(refuse)
    outcomes = publisher.publish([letter(ONE) for _ in range(40)])
    assert all(isinstance(o, Acked) for o in outcomes)
    assert len(server.taken) == 40


def test_calls_share_the_connections_that_a_server_allows(
    server: ScriptedServer, make: Make
) -> None:
    """Otherwise a worker would take the limit for an outage, while another is served."""
    server.script["CONNECT"] = greeter(lambda: "421 too many connections")
    publisher = make(timeout=20, connections=4)
    found: list[Outcome] = []
    calls = [
        threading.Thread(target=lambda: found.extend(publisher.publish([letter(ONE)] * 20)))
        for _ in range(3)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert [type(o) for o in found] == [Acked] * 60


def test_a_server_that_allows_no_connection_is_an_outage_at_once(
    server: ScriptedServer, make: Make
) -> None:
    server.script["CONNECT"] = lambda: "421 too many connections"
    begin = time.monotonic()
    outcomes = make(timeout=60, connections=4).publish([letter(ONE) for _ in range(40)])
    assert time.monotonic() - begin < 10  # and not when it is too late to send anything
    assert {failure(o) for o in outcomes} == {(ErrorClass.OUTAGE, "NO_CONNECTION")}
    assert server.connections <= 4


def test_a_server_without_starttls_gets_nothing_where_it_is_required(
    server: ScriptedServer, make: Make
) -> None:
    publisher = make(start_tls="Required")
    (outcome,) = publisher.publish([letter(ONE)])
    assert failure(outcome) == (ErrorClass.OUTAGE, "NO_CONNECTION")
    assert not any(command.startswith("MAIL") for command in server.commands)
    with pytest.raises(PublisherError, match="offers no STARTTLS"):
        publisher.probe()


def test_nobody_there_is_an_outage_for_all(make: Make) -> None:
    outcomes = make(port=free_port()).publish([letter(ONE) for _ in range(5)])
    assert {failure(o) for o in outcomes} == {(ErrorClass.OUTAGE, "NO_CONNECTION")}
