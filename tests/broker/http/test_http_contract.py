"""HTTP keeps the contract of a publisher, in every format."""

import base64
import json
from dataclasses import dataclass

import pytest

from broker.http.publishers import MakePublisher
from conformance.publisher_contract import (
    PatienceContract,
    PatientTarget,
    PublisherContract,
    Received,
    make_claim,
)
from dev.services.http import Got, Handler, HttpServer, Misbehave, Reply
from outbox_core.model.event import Claim
from outbox_relay.publishers.http.publisher import HttpPublisher

pytestmark = pytest.mark.http

ID_HEADER = {"Raw": "outbox-event-id", "CloudEvents": "ce-id", "Debezium": "id"}


@dataclass
class HttpTarget(PatientTarget):
    publisher: HttpPublisher
    server: HttpServer
    format: str

    def __post_init__(self) -> None:
        self.carries_headers = self.format != "Debezium"
        if self.format == "Structured":
            self.largest = 700_000  # in base64 it is a third more

    def received(self, n: int) -> list[Received]:
        return [self._read(got) for got in self.server.received(n)]

    def _read(self, got: Got) -> Received:
        headers: list[tuple[str, bytes | None]] = [(n, v.encode()) for n, v in got.headers]
        if self.format != "Structured":
            event_id = got.header(ID_HEADER[self.format])
            assert event_id is not None
            return Received(got.body, None, headers, event_id)
        event = json.loads(got.body)
        if "data_base64" in event:
            payload = base64.b64decode(event["data_base64"])
        else:
            payload = got.body.partition(b',"data":')[2][:-1]
        return Received(payload, None, headers, event["id"])

    def refused_claim(self) -> Claim:
        return self.fit(make_claim(b"x" * 1_100_000))

    def break_down(self) -> None:
        self.publisher.probe()
        self.server.answer = lambda got: Misbehave(Handler.hang)
        self.server.shutdown()
        self.server.socket.close()

    def ask_for_patience(self, seconds: int) -> None:
        self.server.answer = lambda got: Reply(503, headers={"retry-after": str(seconds)})


@pytest.fixture
def target(
    request: pytest.FixtureRequest, http_server: HttpServer, make_publisher: MakePublisher
) -> HttpTarget:
    format = request.param
    settings = {"format": format, "perEndpoint": 8}
    if format == "Structured":
        settings |= {"format": "CloudEvents", "cloudEventsMode": "Structured"}
    timeout = "1s" if "tc_15" in request.node.name else "20s"
    publisher = make_publisher(deliveryTimeout=timeout, timeout=timeout, **settings)
    return HttpTarget(publisher, http_server, format)


@pytest.mark.parametrize("target", ["Raw", "CloudEvents", "Structured", "Debezium"], indirect=True)
class TestHttp(PublisherContract, PatienceContract):
    pass
