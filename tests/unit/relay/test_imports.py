"""Each program starts with its own dependencies alone: an image holds no other's."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
MODULES = {"pyyaml": "yaml"}
"""Where a distribution is not imported by its own name."""

WITHOUT = """
import importlib, pkgutil, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} belongs to another program", name=name)

BLOCKED, packages = set(sys.argv[1].split(",")), sys.argv[2].split(",")
sys.meta_path.insert(0, Blocker())
count = 0
for name in packages:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        importlib.import_module(found.name)
        count += 1
print(count)
"""


def modules(requirements: list[str]) -> set[str]:
    names = {re.split(r"[^A-Za-z0-9_-]", r)[0].lower() for r in requirements}
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


BASE = modules(PROJECT["dependencies"])
EXTRAS = {name: modules(list_) for name, list_ in PROJECT["optional-dependencies"].items()}
PROGRAMS = ("relay", "operator", "spark")
EVERYTHING = set().union(BASE, *(EXTRAS[program] for program in PROGRAMS))


def import_without(blocked: set[str], *packages: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(sorted(blocked)), ",".join(packages)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_model_needs_the_standard_library_alone() -> None:
    run = import_without(EVERYTHING, "outbox_core.model", "outbox_core.errors")
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= 5


@pytest.mark.parametrize(
    ("program", "packages"),
    [
        ("relay", ["outbox_relay"]),
        ("operator", ["outbox_operator", "outbox_core.contract", "outbox_core.model"]),
        (
            "spark",
            [
                "outbox_spark",
                "outbox_core.contract",
                "outbox_core.store",
                "outbox_core.observe",
            ],
        ),
    ],
)
def test_a_program_starts_without_what_only_the_others_need(
    program: str, packages: list[str]
) -> None:
    # What reads the config file is in every image: see the next test.
    others = EVERYTHING - EXTRAS[program] - BASE - {"yaml"}
    run = import_without(others, *packages)
    assert run.returncode == 0, run.stderr


def test_the_contract_needs_what_all_programs_have() -> None:
    run = import_without(EVERYTHING - BASE, "outbox_core.contract")
    assert run.returncode == 0, run.stderr


def test_the_blocker_blocks() -> None:
    run = import_without({"psycopg"}, "outbox_core.store")
    assert run.returncode != 0
    assert "psycopg belongs to another program" in run.stderr
