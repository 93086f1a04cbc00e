"""The demo runs from end to end, and its output shows it."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.cluster import Kube
from fixtures.installation import Installation

ROOT = Path(__file__).resolve().parents[3]
KEY_LINES = (
    "helm upgrade --install outbox-operator charts/outbox-operator",
    "outboxrelay.outbox.dev/orders condition met",
    "A relay's pod is killed under load",
    "0 lost, 0 out of order.",
    "dead events: 1",
    "'order.paid/twice'",
    "Warning   DeadLetters",
    "INVALID_TOPIC",
    "outboxreplay.outbox.dev/look condition met",
    '"estimatedSeconds"',
    "outboxreplay.outbox.dev/again condition met",
    "All of it happened",
    "make cluster-down",
)


@pytest.fixture
def place(kube: Kube, installed: Installation) -> Iterator[str]:
    """Namespaces of its own, and no other operator that looks after them."""
    name = f"demo-{uuid.uuid4().hex[:6]}"
    with installed.stopped():
        yield name
        made = {namespace.metadata.name for namespace in kube.core.list_namespace().items}
        for namespace in made & {name, f"{name}-system"}:
            kube.core.delete_namespace(namespace)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_shows_what_it_promises(place: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "dev.demo", "--orders", "300", "--no-crds"),
            *("--namespace", place, "--system", f"{place}-system", "--written", str(tmp_path)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=390,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    missing = [line for line in KEY_LINES if line not in ran.stdout]
    assert not missing, ran.stdout
