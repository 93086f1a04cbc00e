"""The scripts of the cluster tests run in a pod, detached from whoever began them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "e2e" / "scripts" / "tools.py"


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def script(self, text: str) -> str:
        path = self.folder / "script.py"
        path.write_text(text)
        return str(path)

    def run(self, *words: str) -> str:
        return subprocess.run(
            [sys.executable, str(PROGRAM), *words],
            env={**os.environ, "TMPDIR": str(self.folder)},
            capture_output=True,  # hence returns only when nobody holds its output any more
            text=True,
            check=True,
            timeout=60,
        ).stdout

    def result(self, name: str, seconds: float = 30) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.run("result", name, str(seconds)))
        return told


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_script_runs_with_its_arguments_and_variables(place: Place) -> None:
    script = place.script("import os, sys\nprint(os.environ['COLOUR'], *sys.argv[1:])")
    place.run("start", "one", '{"COLOUR": "red"}', script, "a", "b")
    assert place.result("one") == {"code": 0, "output": "red a b\n"}


def test_one_that_fails_tells_why(place: Place) -> None:
    place.run("start", "one", "{}", place.script("raise SystemExit('no such topic')"))
    assert place.result("one") == {"code": 1, "output": "no such topic\n"}


def test_it_is_begun_once_and_goes_on_by_itself(place: Place) -> None:
    go = place.folder / "go"
    waits = f"""
import time
from pathlib import Path
print("begun", flush=True)
while not Path({str(go)!r}).exists():
    time.sleep(0.01)
"""
    for _ in range(2):
        place.run("start", "one", "{}", place.script(waits))
    assert place.result("one", seconds=0.5)["code"] is None
    go.touch()
    assert place.result("one") == {"code": 0, "output": "begun\n"}


def test_one_that_is_stopped_does_nothing_more(place: Place) -> None:
    forever = """
import time
from pathlib import Path
while True:
    with (Path(__file__).parent / "ticks").open("a") as ticks:
        ticks.write("x")
    time.sleep(0.01)
"""
    place.run("start", "one", "{}", place.script(forever))
    ticks = place.folder / "ticks"
    while not ticks.exists():
        assert place.result("one", 0.1)["code"] is None
    place.run("stop", "one")
    size = ticks.stat().st_size
    assert place.result("one", 0.3)["code"] is None  # it came to no end of its own
    assert ticks.stat().st_size == size
