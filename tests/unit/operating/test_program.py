"""The operator as a process: what it says when it is asked, and when it cannot start."""

import os
import subprocess
import sys
from typing import cast

import pytest

from outbox_operator.dispatch import Dispatcher
from outbox_operator.program import Operator
from outbox_operator.settings import OperatorSettings


def run(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "outbox_operator", *arguments],
        env={**os.environ, "OUTBOX_OPERATOR_PORT": "0", **environ},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_help_tells_every_setting_with_its_reason() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "OUTBOX_OPERATOR_NAMESPACES" in done.stdout
    assert "all namespaces" in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("INTERVAL", "ten", "interval: 'ten' is not a duration"), ("INTERVALS", "1s", "intervals: ")],
)
def test_a_wrong_setting_is_told_and_nothing_is_started(name: str, value: str, told: str) -> None:
    done = run(**{f"OUTBOX_OPERATOR_{name}": value})
    assert done.returncode == 1
    assert told in done.stderr


def test_without_a_cluster_it_ends_and_says_so(tmp_path: object) -> None:
    done = run(KUBECONFIG=f"{tmp_path}/none")
    assert done.returncode == 1
    assert "outbox-operator: cannot start: " in done.stderr


def test_a_deletion_comes_with_the_last_state_and_anything_else_with_the_present_one() -> None:
    operator = Operator(OperatorSettings())
    heard: list[tuple[str, object]] = []

    class Listening:
        def seen(self, key: object, body: object) -> bool:
            heard.append(("seen", body))
            return False

        def deleted(self, key: object, last: object) -> bool:
            heard.append(("deleted", last))
            return False

    operator._dispatcher = cast("Dispatcher", Listening())
    for number, kind in enumerate((None, "ADDED", "MODIFIED", "DELETED")):
        operator.noticed("OutboxRelay", "shop", "orders", {"type": kind, "object": {"n": number}})
    assert [how for how, _ in heard] == ["seen", "seen", "seen", "deleted"]
    assert heard[-1][1] == {"n": 3}
