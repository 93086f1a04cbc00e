"""Components are processes that outlive the program that started them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from dev.cluster.builtin.supervision import start_time
from dev.services.process import free_port
from dev.services.waiting import wait_until

PROGRAM = """
import sys
from pathlib import Path
from dev.cluster.builtin.components import Component
from dev.cluster.builtin.supervision import Supervisor

folder, port = Path(sys.argv[1]), sys.argv[2]
serve = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", folder, port)
server = Component("server", tuple(map(str, serve)), f"http://127.0.0.1:{port}/")
print(Supervisor(folder, [], folder / "cgroup.procs").bring_up([server]))
"""

KILLED_EARLY = (
    """
import os
from dev.cluster.builtin import supervision

class Dies(supervision.LeftRunning):
    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        os._exit(9)

supervision.LeftRunning = Dies
"""
    + PROGRAM
)


def test_a_component_whose_starter_is_killed_is_found_again(tmp_path: Path) -> None:
    starter = subprocess.run(
        [sys.executable, "-c", KILLED_EARLY, str(tmp_path), str(free_port())], timeout=60
    )
    assert starter.returncode == 9
    recorded = tmp_path / "pids" / "server"
    wait_until(recorded.exists, 20, "what it wrote of itself")
    pid, began = map(int, recorded.read_text().split())
    try:
        assert start_time(pid) == began
        assert [path.name for path in recorded.parent.iterdir()] == ["server"]
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: start_time(pid) is None, 10, "its end")


def test_a_component_is_left_running_without_a_warning(tmp_path: Path) -> None:
    starter = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path), str(free_port())],
        capture_output=True,
        text=True,
        timeout=60,
    )
    pid, began = map(int, (tmp_path / "pids" / "server").read_text().split())
    try:
        assert (starter.stdout, starter.stderr) == ("['server']\n", "")
        assert start_time(pid) == began
        assert int((tmp_path / "cgroup.procs").read_text()) == pid
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: start_time(pid) is None, 10, "its end")
