"""What dev/setup does with what an earlier run left on the machine."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = "#!/bin/sh\n# for an install by outbox-operator's dev/setup, process {}\nexit 101\n"


def gone_process() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="else it asks for sudo")
@pytest.mark.parametrize(
    ("content", "stays"),
    [
        (OURS.format(gone_process()), False),
        (OURS.format(os.getpid()), True),  # of another clone's, which is at work
        ("#!/bin/sh\nexit 101\n", True),  # the machine's own
    ],
)
def test_a_policy_that_a_killed_run_left_is_removed_and_no_other(
    tmp_path: Path, content: str, stays: bool
) -> None:
    policy = tmp_path / "usr" / "sbin" / "policy-rc.d"
    policy.parent.mkdir(parents=True)
    policy.write_text(content)
    setup = (ROOT / "dev" / "setup").read_text()
    begin, end = setup.index("# For an install alone"), setup.index("install_packages()")
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{setup[begin:end]}\nremove_what_a_killed_run_left"],
        env={**os.environ, "OUTBOX_SETUP_SYSTEM": str(tmp_path)},
        check=True,
    )
    assert policy.exists() == stays
