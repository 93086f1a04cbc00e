"""What the next `up` does, and whose process is whose."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dev.cluster.builtin import stamp
from dev.cluster.builtin.components import Component
from dev.cluster.builtin.readiness import judge
from dev.cluster.builtin.stamp import Stamp, plan
from dev.cluster.builtin.supervision import Supervisor, start_time


def _node(status: str, heard: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": status, "lastHeartbeatTime": heard}
    return {"status": {"conditions": [{**ready, "message": "no network yet"}]}}


WANTED = Stamp(owner="/clone", boot="b1", range="10.87.0.0/16", programs="p1", config="c1")


@pytest.mark.parametrize(
    ("was", "room_intact", "way"),
    [
        (None, False, "fresh"),
        (WANTED, True, "heal"),
        (WANTED, False, "restart"),
        (replace(WANTED, programs="p0"), True, "restart"),
        (replace(WANTED, config="c0"), True, "restart"),
        (replace(WANTED, boot="b0"), False, "fresh"),
        (replace(WANTED, range="10.9.0.0/16"), False, "fresh"),
        (replace(WANTED, owner="/other"), True, "fresh"),
    ],
)
def test_as_much_is_done_anew_as_has_to_be(was: Stamp | None, room_intact: bool, way: str) -> None:
    assert plan(was, WANTED, room_intact).way == way


def test_a_stamp_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert stamp.read(tmp_path) is None
    stamp.write(tmp_path, WANTED)
    assert stamp.read(tmp_path) == WANTED


@pytest.mark.parametrize("content", ["", "{", '{"of": "another version"}'])
def test_a_stamp_that_makes_no_sense_means_to_start_afresh(tmp_path: Path, content: str) -> None:
    (tmp_path / "stamp.json").write_text(content)
    assert plan(stamp.read(tmp_path), WANTED, room_intact=True).way == "fresh"


def test_a_number_that_became_anothers_is_not_ours(tmp_path: Path) -> None:
    component = Component("etcd", (), "")
    supervisor = Supervisor(tmp_path, [], tmp_path)
    (tmp_path / "pids").mkdir()
    began = start_time(os.getpid())
    assert began
    (tmp_path / "pids" / "etcd").write_text(f"{os.getpid()} {began}")
    assert supervisor.pid(component) == os.getpid()
    (tmp_path / "pids" / "etcd").write_text(f"{os.getpid()} {began - 1}")
    assert supervisor.pid(component) is None
    (tmp_path / "pids" / "etcd").write_text(f"{os.getpid()}")
    assert supervisor.pid(component) is None


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.read()  # until it has ended; nobody has collected it yet
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None
    child.communicate()


@pytest.mark.parametrize(
    ("node", "verdict"),
    [
        ({"error": "connection refused"}, "connection refused"),
        ({"status": {}}, "it has not registered"),
        (_node("True", "2026-01-01T00:00:00Z"), "Ready"),
        (_node("True", "2025-12-31T23:59:59Z"), "it has not reported since"),
        (_node("False", "2026-01-01T00:00:09Z"), "no network yet"),
    ],
)
def test_a_node_is_ready_if_it_says_so_now(node: dict[str, Any], verdict: str) -> None:
    assert judge(node, after="2026-01-01T00:00:00Z") == verdict
