"""The scripts of the cluster tests run in a pod, independent of the request that began them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "e2e" / "scripts" / "tools.py"


class Place:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._port = port

    def ask(self, action: str, **asked: Any) -> Any:
        body = json.dumps(asked).encode()
        request = Request(f"http://127.0.0.1:{self._port}/{action}", body)
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def start(self, text: str, *arguments: str, **environ: str) -> None:
        path = self.folder / "script.py"
        path.write_text(text)
        self.ask("start", name="one", environ=environ, script=str(path), arguments=list(arguments))

    def result(self, seconds: float = 30) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("result", name="one", seconds=seconds)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), "0"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield Place(tmp_path, int(server.stdout.readline()))
        server.terminate()


def test_a_script_runs_with_its_arguments_and_variables(place: Place) -> None:
    script = "import os, sys\nprint(os.environ['COLOUR'], *sys.argv[1:])"
    place.start(script, "a", "b", COLOUR="red")
    assert place.result() == {"code": 0, "output": "red a b\n"}


def test_one_that_fails_shows_why(place: Place) -> None:
    place.start("raise SystemExit('no such topic')")
    assert place.result() == {"code": 1, "output": "no such topic\n"}


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
        place.start(waits)
    assert place.result(seconds=0.5)["code"] is None
    go.touch()
    assert place.result() == {"code": 0, "output": "begun\n"}


def test_one_that_is_stopped_does_nothing_more(place: Place) -> None:
    forever = """
import time
from pathlib import Path
while True:
    with (Path(__file__).parent / "ticks").open("a") as ticks:
        ticks.write("x")
    time.sleep(0.01)
"""
    place.start(forever)
    ticks = place.folder / "ticks"
    while not ticks.exists():
        assert place.result(0.1)["code"] is None
    place.ask("stop", name="one")
    size = ticks.stat().st_size
    assert place.result(0.3)["code"] is None  # it came to no end of its own
    assert ticks.stat().st_size == size


def test_what_cannot_be_served_is_answered_with_the_reason(place: Place) -> None:
    with pytest.raises(HTTPError) as refused:
        place.ask("sql", dsn="host=127.0.0.1 port=1", query="SELECT 1")
    assert refused.value.code == 422
    with refused.value as answer:
        assert "127.0.0.1" in json.load(answer)
