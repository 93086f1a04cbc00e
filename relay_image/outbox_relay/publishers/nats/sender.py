"""
Messages to a server and its answers to outcomes, over one connection in one call.

`publisher` decides what is sent together. An answer is an acknowledgement if it names a sequence
number and no error: errors of JetStream have a number too, 0.
"""

import secrets
from collections.abc import Sequence

from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused
from outbox_relay.publishers.nats.connection import Connection, Reply
from outbox_relay.publishers.nats.errors import DENIED, NO_RESPONDERS, Problem, error_of
from outbox_relay.publishers.nats.messages import Message
from outbox_relay.publishers.nats.streams import answer_of, why_nobody_answered

FIRST_LINE = b"NATS/1.0\r\n"
BATCH_OVERHEAD_BYTES = 160
"""What the headers of a batch, and the lines around ours, add to a message at most."""


def send_each(connection: Connection, messages: Sequence[Message], until: float) -> list[Outcome]:
    """Each by itself, all under way at once: any of them may fail while those behind it arrive."""
    data: list[bytes] = []
    numbers: list[int] = []
    for subject, headers, payload in messages:
        number, reply = connection.address(subject)
        numbers.append(number)
        size = len(FIRST_LINE) + len(headers) + 2
        data += (
            f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n".encode(),
            *(FIRST_LINE, headers, b"\r\n", payload, b"\r\n"),
        )
    replies = connection.exchange(data, until)
    why = connection.why_lost or "the answer is not one of JetStream's"
    in_doubt = Refused(Error.of(ErrorClass.OUTAGE, "NO_ANSWER", f"in doubt: {why}"))
    judged = [acked_or_problem(replies.get(number)) for number in numbers]
    unanswered = (
        m.subject for m, found in zip(messages, judged, strict=True) if has_no_responder(found)
    )
    reasons = why_nobody_answered(connection, unanswered, until)
    outcomes: list[Outcome] = []
    for message, found in zip(messages, judged, strict=True):
        if found is None:
            outcomes.append(in_doubt)
        elif isinstance(found, Acked):
            outcomes.append(found)
        elif has_no_responder(found):
            outcomes.append(Refused(reasons[message.subject]))
        else:
            outcomes.append(Refused(error_of(found)))
    return outcomes


def has_no_responder(found: Acked | Problem | None) -> bool:
    return isinstance(found, Problem) and found.code == NO_RESPONDERS


def send_atomically(
    connection: Connection, messages: Sequence[Message], until: float
) -> list[Outcome] | Problem:
    """All or none. A Problem: the server has stored none of them."""
    batch = secrets.token_hex(12)
    data: list[bytes] = []
    last = len(messages)
    shared = FIRST_LINE + f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: ".encode()
    number, reply = connection.address(messages[-1].subject)
    for n, (subject, headers, payload) in enumerate(messages, 1):
        # Only the last one asks for an answer, which reports whatever went wrong before it.
        end, to = (b"\r\nNats-Batch-Commit: 1\r\n", f"{reply} ") if n == last else (b"\r\n", "")
        head = b"%b%d%b%b\r\n" % (shared, n, end, headers)
        data += (
            f"HPUB {subject} {to}{len(head)} {len(head) + len(payload)}\r\n".encode(),
            *(head, payload, b"\r\n"),
        )
    answer = connection.exchange(data, until).get(number)
    if answer is None:
        text = f"in doubt: {connection.why_lost}"
        return [Refused(Error.of(ErrorClass.OUTAGE, "NO_ANSWER", text))] * last
    judged = acked_or_problem(answer)
    if isinstance(judged, Problem):
        return judged
    found = answer_of(answer) if judged else {}
    if found.get("batch") != batch or found.get("count") != last or found["seq"] < last:
        # As from a server that does not know batches: it has stored some of them, and which is
        # unknown.
        connection.broken = True
        text = "in doubt: the answer is not that to an atomic batch"
        return [Refused(Error.of(ErrorClass.OUTAGE, "NO_BATCH", text))] * last
    stream, first = found["stream"], found["seq"] - last + 1
    return [Acked(f"{stream}@{first + n}") for n in range(last)]


def acked_or_problem(reply: Reply | None) -> Acked | Problem | None:
    """None: in doubt."""
    if reply is None:
        return None
    if reply.status == DENIED:
        return Problem(DENIED, reply.body.decode(errors="replace"))
    if reply.status:
        return Problem(reply.status, "the server answered with a status instead of JetStream")
    answer = answer_of(reply)
    if "error" in answer:
        error = answer["error"]
        code = error.get("err_code") or error.get("code")
        text = str(error.get("description", "no reason given"))
        text = text.encode(errors="replace").decode()  # half a surrogate pair cannot be stored
        return Problem(code, text) if isinstance(code, int) else None
    stream, seq = answer.get("stream"), answer.get("seq")
    named = isinstance(stream, str) and stream and stream.isprintable()
    return Acked(f"{stream}@{seq}") if named and type(seq) is int and seq > 0 else None
