"""The worked example of a system of record: every change is made once."""

import json
import sqlite3
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.http.publishers import MakePublisher
from conformance.publisher_contract import make_claim
from dev.services.http import HttpServer
from fixtures.moments import moment_of
from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.model.attempt import Acked, ErrorClass, Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.http.publisher import HttpPublisher

pytestmark = pytest.mark.http

EXAMPLE = Path(__file__).parents[3] / "examples" / "sor_service"


def proposal(number: int, **payload: Any) -> Claim:
    change = {
        "entity_type": "CASE",
        "entity_id": "case 1",
        "change": {"status": "IN_PROGRESS", "note": f"ü{number}"},
        "evidence_pack": {"seen": [1]},
        "idempotency_key": f"run-{number}",
        **payload,
    }
    return make_claim(json.dumps(change).encode(), tenant_id="acme")


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import service  # type: ignore[import-not-found]

    server = service.make_server(0, str(tmp_path / "records.sqlite"))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", tmp_path / "records.sqlite"
    server.shutdown()
    server.server_close()
    thread.join()
    sys.modules.pop("service")


def test_ce_34_ce_25_a_proposal_carries_its_evidence_and_the_hash_of_its_source(
    http_server: HttpServer, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(request="SorUpdate", method="PUT", source="orchestrator")
    claim = proposal(1)._replace(occurred_at=moment_of(datetime(2026, 1, 4, 12, 5, tzinfo=UTC)))
    assert isinstance(publisher.publish([claim])[0], Acked)
    (got,) = http_server.got
    assert json.loads(got.body) == {
        "entity_type": "CASE",
        "entity_id": "case 1",
        "change": {"status": "IN_PROGRESS", "note": "ü1"},
        "source_id": "orchestrator:run-1",
        "source_hash": sha256('{"note":"ü1","status":"IN_PROGRESS"}'.encode()).hexdigest(),
        "timestamp": "2026-01-04T12:05:00.000000Z",
        "inference": False,
        "evidence": {"seen": [1]},
    }
    assert got.header("x-idempotency-key") == "run-1"


def test_ce_34_a_change_is_made_once_however_often_it_is_sent(records: tuple[str, Path]) -> None:
    url, file = records
    text = (EXAMPLE / "relay.yaml").read_text().replace("http://127.0.0.1:8080", url)
    settings = HttpSettings.model_validate(yaml.safe_load(text)["publisher"]["http"])
    publisher = HttpPublisher(settings)
    first = proposal(1)
    (applied,) = publisher.publish([first])
    (copy,) = publisher.publish([first])  # such as after a crash, when nobody knows of the first
    (asked,) = publisher.publish([first._replace(attempts=2)])
    other, broken = publisher.publish(
        [proposal(1, change={"status": "CLOSED"}), proposal(3, entity_id=None)]
    )
    assert (applied, copy) == (Acked("200 applied"), Acked("200 already applied"))
    assert asked == Acked("the check found it already there: 200 known")
    assert isinstance(other, Refused)
    assert (other.error.kind, other.error.code) == (ErrorClass.EVENT, "HTTP_422")
    assert isinstance(broken, Refused)
    assert broken.error.code == "INVALID_PAYLOAD"
    conn = sqlite3.connect(file)
    assert conn.execute("SELECT source_id FROM change").fetchall() == [("orchestrator:run-1",)]
    ((tenant, entity, data),) = conn.execute("SELECT * FROM record").fetchall()
    conn.close()
    assert (tenant, entity) == ("acme", "/CASE/case%201")
    assert json.loads(data) == {"status": "IN_PROGRESS", "note": "ü1"}


@pytest.mark.parametrize(
    "number", ["1", "-0", "1.10", "1E5", "1e-7", "9007199254740993", "12345678901234567.8900"]
)
def test_a_service_finds_the_hash_in_what_it_has_parsed(
    records: tuple[str, Path], make_publisher: MakePublisher, number: str
) -> None:
    """Of a number, JSON in most languages keeps the value, and not how it was written."""
    publisher = make_publisher(
        records[0] + "/{entity_type}/{entity_id}", request="SorUpdate", method="PUT"
    )
    claim = proposal(1, change={"total": "?"})
    claim = claim._replace(payload=claim.payload.replace(b'"?"', number.encode()))
    assert publisher.publish([claim]) == [Acked("200 applied")]
