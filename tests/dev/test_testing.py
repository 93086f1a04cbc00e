"""What `make test` runs, in which order and where, what it prints, and how it ends."""

import os
import signal
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from dev.cluster.instance import from_environment
from dev.services import wait_until
from dev.services.process import is_alive
from dev.testing.lanes import Lane, make_lanes
from dev.testing.results import Result, Timed, table
from dev.testing.suites import MINUTES, Suite, choose, find

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"


def test_each_test_is_in_one_suite() -> None:
    suites = find(TESTS)
    for file in TESTS.rglob("test_*.py"):
        assert len([s.name for s in suites if s.folder in file.parents]) == 1, file


def test_the_minutes_are_those_of_suites_that_there_are() -> None:
    assert {suite.name for suite in find(TESTS)} == set(MINUTES)


def test_the_longest_suite_begins_and_a_new_one_before_it(tmp_path: Path) -> None:
    for name in ("dev", "relay", "e2e/faults", "new"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "test_it.py").touch()
    assert [s.name for s in find(tmp_path)] == ["new", "e2e/faults", "relay", "dev"]


def test_suites_are_chosen_by_their_names() -> None:
    found = [Suite(name, TESTS / name) for name in ("e2e/faults", "e2e/relays", "store", "unit")]
    assert choose(found, []) == found
    assert [s.name for s in choose(found, ["unit", "e2e/relays"])] == ["e2e/relays", "unit"]
    assert [s.name for s in choose(found, ["e2e"])] == ["e2e/faults", "e2e/relays"]
    with pytest.raises(LookupError, match="no suite is called e3e; there are e2e/faults, "):
        choose(found, ["store", "e3e"])


@pytest.mark.parametrize(
    "environ",
    [
        {"OUTBOX_CLUSTER": "node"},
        {"OUTBOX_CLUSTER": "node", "OUTBOX_CLUSTER_INSTANCE": "twelvesmalls"},
        {"OUTBOX_CLUSTER": "node", "OUTBOX_CLUSTER_RANGE": "10.250.0.0/16"},
    ],
)
def test_each_lane_has_a_cluster_of_its_own(environ: dict[str, str]) -> None:
    *lanes, waiting = make_lanes(4, environ)
    assert all(lane.has_cluster for lane in lanes)
    assert not waiting.has_cluster
    assert from_environment(lanes[0].environ) == from_environment(environ)
    instances = [from_environment(lane.environ) for lane in lanes]
    instances.append(from_environment({"OUTBOX_CLUSTER_INSTANCE": "harness"}))  # of a suite
    assert len({instance.name for instance in instances}) == 5
    assert len({instance.range for instance in instances}) == 5
    assert all(i.range.subnet_of(IPv4Network("10.0.0.0/8")) for i in instances)


def test_of_a_cluster_that_was_there_before_there_is_one() -> None:
    lanes = make_lanes(3, {"OUTBOX_CLUSTER": "existing", "KUBECONFIG": "/nowhere"})
    assert [lane.has_cluster for lane in lanes] == [True, False, False, False]


def test_the_last_lane_is_for_suites_that_mostly_wait() -> None:
    *lanes, waiting = make_lanes(2, {"OUTBOX_CLUSTER": "node"})
    suites = {name: Suite(name, TESTS / name) for name in ("broker/nats", "store", "e2e/relays")}
    can_run = {name: [lane.can_run(s) for lane in lanes] for name, s in suites.items()}
    assert can_run == {
        "broker/nats": [True, True],
        "store": [True, True],
        "e2e/relays": [True, False],
    }
    assert [name for name, s in suites.items() if waiting.can_run(s)] == ["broker/nats"]


def test_only_the_first_lane_begins_with_what_needs_a_cluster() -> None:
    first, second, waiting = make_lanes(2, {"OUTBOX_CLUSTER": "node"})
    names = ("broker/nats", "crds", "store", "e2e/live", "e2e/relays")
    suites = {name: Suite(name, TESTS / name) for name in names}

    def order(lane: Lane) -> list[str]:
        left = list(suites.values())
        found = []
        while suite := lane.next_of(left):
            left.remove(suite)
            found.append(suite.name)
        return found

    assert order(first) == ["e2e/relays", "crds", "store", "broker/nats"]
    assert order(second) == ["store", "crds", "broker/nats"]
    assert order(waiting) == ["broker/nats"]


def test_the_table_has_all_suites_and_their_sum() -> None:
    tests = tuple(Timed(f"test_{n}", 1.0) for n in range(10))
    results = [Result("store", 0, 90.0, 0, 1, tests), Result("relay", 1, 30.0, 2, 0, tests)]
    assert table(results, 100.0).splitlines() == [
        "suite     tests  passed  failed  skipped  minutes",
        "relay        10       8       2        0      0.5",
        "store        10       9       0        1      1.5",
        "together     20      17       2        1      1.7",
    ]


# Real ones: each is a pytest process ----------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from dev.testing.__main__ import run
from dev.testing.lanes import Lane
from dev.testing.suites import Suite
import os
folder = Path(sys.argv[1])
suites = [Suite(name, folder / name) for name in sys.argv[2:]]
lanes = [Lane(number, os.environ, True) for number in (1, 2)]
sys.exit(run(suites, lanes, folder / "output"))
"""


def start(folder: Path, suites: dict[str, str]) -> subprocess.Popen[str]:
    for name, text in suites.items():
        (folder / name).mkdir(parents=True)
        (folder / name / f"test_{name.replace('/', '_')}.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folder, *suites],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_failure_is_shown_and_hides_no_other(tmp_path: Path) -> None:
    suites = {
        "bad": "def test_bad():\n    assert 1 + 1 == 3, 'a wrong sum'\n",
        "worse": "import os\ndef test_worse():\n    os._exit(7)\n",
        "good": "def test_good():\n    print('nobody wants to know')\n",
    }
    ran = start(tmp_path, suites)
    said, _ = ran.communicate(timeout=60)
    assert ran.returncode == 1
    assert "a wrong sum" in said
    assert "nobody wants to know" not in said
    assert "bad FAILED (pytest ended with 1): 1 tests, 1 failed" in said
    assert "worse FAILED (pytest ended with 7): 0 tests" in said
    assert "good passed: 1 tests, 0 failed" in said
    *_, bad, good, worse, together = said.splitlines()
    assert [line.split()[:4] for line in (bad, good, worse, together)] == [
        ["bad", "1", "0", "1"],
        ["good", "1", "1", "0"],
        ["worse", "0", "0", "0"],
        ["together", "2", "1", "1"],
    ]


def test_a_suite_that_measures_latency_waits_until_nothing_else_runs(tmp_path: Path) -> None:
    path = f"__import__('pathlib').Path({str(tmp_path)!r}, 'ended')"
    slow = f"import time\ndef test_it():\n    time.sleep(2)\n    {path}.touch()\n"
    alone = f"def test_it():\n    assert {path}.exists()\n"
    ran = start(tmp_path, {"e2e/live": alone, "slow": slow})
    said, _ = ran.communicate(timeout=60)
    assert ran.returncode == 0, said


SERVING = """
import os, subprocess, time
from pathlib import Path
import pytest

@pytest.fixture
def server():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path({folder!r}, "pids").write_text(f"{{os.getpid()}} {{process.pid}}")
    yield
    process.kill()
    process.wait()
    Path({folder!r}, "stopped").touch()

def test_it(server):
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_who_is_ended_ends_its_suites_and_they_stop_their_servers(
    tmp_path: Path, how: signal.Signals
) -> None:
    ran = start(tmp_path, {"long": SERVING.format(folder=str(tmp_path))})
    pids = tmp_path / "pids"
    try:
        wait_until(lambda: pids.exists() and pids.read_text(), 30, "it runs")
    finally:
        os.kill(ran.pid, how)
    said, _ = ran.communicate(timeout=30)
    running = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(map(is_alive, running)), 30, f"the end of {running}")
    assert (tmp_path / "stopped").exists()
    if how is not signal.SIGKILL:
        assert ran.returncode == 130
        assert "interrupted; 1 suites have no result" in said
