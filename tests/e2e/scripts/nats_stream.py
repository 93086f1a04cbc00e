"""
A stream of NATS JetStream: URL create NAME SUBJECT, or URL read NAME.

`read` prints how many messages it has, and the events' numbers in their order.
"""

import base64
import json
import sys
import time
from typing import Any

from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.errors import PublisherError
from outbox_relay.publishers.nats.connection import Connection

url, action, name = sys.argv[1:4]
until = time.monotonic() + 30


def connect() -> Connection:
    """A Service leads to a new pod a moment after that is ready."""
    while True:
        try:
            return Connection(NatsSettings(servers=(url,)), url, until)
        except PublisherError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


server = connect()


def ask(api: str, body: dict[str, Any]) -> dict[str, Any]:
    (reply,) = server.request([(f"$JS.API.STREAM.{api}.{name}", body)], until)
    assert reply is not None, server.why_lost
    answer: dict[str, Any] = json.loads(reply.body)
    assert "error" not in answer, answer
    return answer


if action == "create":
    ask("CREATE", {"name": name, "subjects": [sys.argv[4]], "allow_atomic": True})
else:
    messages = ask("INFO", {})["state"]["messages"]
    numbers = [
        int(base64.b64decode(ask("MSG.GET", {"seq": seq})["message"]["data"]))
        for seq in range(1, messages + 1)
    ]
    print(json.dumps(numbers))
