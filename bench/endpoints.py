"""
One silent endpoint among fifty: what the others feel of it.

The HTTP publisher alone, called by two threads as workers call it, against a server of its own
process. A silent endpoint accepts connections and never answers, which costs most: where nobody
listens, the refusal comes at once. Two publishers take turns of a few seconds, so that both have
the same share of whatever else the machine does: one whose endpoints are all well, and one of whose
some are silent. Rates count the same endpoints, those that are always well.

    .venv/bin/python -m bench.endpoints --rounds 20
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any, Final
from uuid import uuid4

from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.model.attempt import Acked
from outbox_core.model.event import Claim
from outbox_relay.publishers.http.publisher import HttpPublisher

ENDPOINTS: Final = 50
WORKERS: Final = 2
BATCH: Final = 100
BODY: Final = "x" * 300
BAR: Final = 0.9
"""What the others keep of their rate beside one silent endpoint."""

SETTINGS: Final = {
    "request": "Payload",
    "allowedHosts": ["127.0.0.1"],
    "allowedNetworks": ["127.0.0.0/8"],
}
ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def serve(pipe: Connection, silent: int, counts: Any) -> None:
    """Endpoints on free ports. The first ones are silent; as many that are well come last, for the
    one to whom nobody is silent."""

    def handler(number: int) -> Any:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0])
                    await reader.readexactly(length)
                    counts[number] += 1
                    if number >= silent:
                        writer.write(ANSWER)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        return talk

    count = ENDPOINTS + silent
    servers = [await asyncio.start_server(handler(n), "127.0.0.1", 0) for n in range(count)]
    pipe.send([server.sockets[0].getsockname()[1] for server in servers])
    await asyncio.to_thread(pipe.recv)


def run_server(pipe: Connection, silent: int, counts: Any) -> None:
    asyncio.run(serve(pipe, silent, counts))


def claim_for(port: int) -> Claim:
    now = datetime.now(UTC)
    payload = json.dumps({"url": f"http://127.0.0.1:{port}/", "body": BODY}).encode()
    nothing = dict.fromkeys(Claim._fields)
    return Claim(
        **{
            **nothing,
            **{"seq": 1, "token": 1, "claimed_at": now, "attempts": 1, "attempts_base": 0},
            **{"crashes": 0, "lane": -1, "event_id": str(uuid4()), "event_type": "a.b"},
            **{"payload": payload, "created_at": now},
        }  # type: ignore[arg-type]
    )


def publish(
    publisher: HttpPublisher, ports: Sequence[int], counted: frozenset[int], seconds: float
) -> float:
    """Events per second, to the ports that count."""
    until = time.monotonic() + seconds
    done = [0] * WORKERS

    def work(worker: int) -> None:
        line = itertools.cycle(ports)
        while time.monotonic() < until:
            batch = [(port, claim_for(port)) for port in itertools.islice(line, BATCH)]
            outcomes = publisher.publish([claim for _, claim in batch])
            for (port, _), outcome in zip(batch, outcomes, strict=True):
                done[worker] += isinstance(outcome, Acked) and port in counted

    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - began)


def compare(silent: int, rounds: int, seconds: float, timeout: str) -> float:
    """The ratio of what the others keep."""
    ours, theirs = multiprocessing.Pipe()
    counts = multiprocessing.Array("q", ENDPOINTS + silent)
    server = multiprocessing.Process(target=run_server, args=(theirs, silent, counts), daemon=True)
    server.start()
    ports: list[int] = ours.recv()
    others = frozenset(ports[silent:ENDPOINTS])
    settings = HttpSettings.model_validate({**SETTINGS, "timeout": timeout})
    publishers = [HttpPublisher(settings) for _ in range(2)]
    lines = [ports[silent:], ports[:ENDPOINTS]]
    rates: list[list[float]] = [[], []]
    for publisher, line in zip(publishers, lines, strict=True):
        publish(publisher, line, others, 1.0)  # the first time it costs `timeout`
    before, began = sum(counts[:silent]), time.monotonic()
    for _ in range(rounds):
        for found, publisher, line in zip(rates, publishers, lines, strict=True):
            found.append(publish(publisher, line, others, seconds))
    tried, lasted = sum(counts[:silent]) - before, time.monotonic() - began
    for publisher in publishers:
        publisher.close(timedelta(seconds=1))
    ours.send(None)
    server.join(5)
    well, sick = (sum(found) / rounds for found in rates)
    print(
        f"{silent:2} of {ENDPOINTS} silent: {sick:,.0f} events/s to the others, {well:,.0f} where "
        f"all are well: ratio {sick / well:.3f}; {tried} requests to the silent in {lasted:.0f} s",
        flush=True,
    )
    return sick / well


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--timeout", default="15s", help="publisher.http.timeout")
    parser.add_argument("--silent", type=int, nargs="*", default=[1, 10])
    options = parser.parse_args()
    for silent in options.silent:
        ratio = compare(silent, options.rounds, options.seconds, options.timeout)
        if silent == 1:
            verdict = "ok" if ratio >= BAR else "MISSED"
            print(f"   the bar: {BAR} beside one silent endpoint: {verdict}")


if __name__ == "__main__":
    main()
