"""The quickest try: what `make try` runs once everything is installed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_an_event_is_seen_arriving() -> None:
    shown = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py", "--once"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert shown.returncode == 0, shown.stderr
    assert "arrived in Kafka: orders[" in shown.stdout
    assert 'key order-1  {"id": 1, "total": 99.50}' in shown.stdout
