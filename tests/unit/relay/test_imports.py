"""Each program starts with its own dependencies alone: an image holds no other's."""

import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from outbox_core.contract.publishers.union import PublisherSettings
from outbox_relay import publishers
from outbox_relay.publishers import registry

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
OURS = re.compile(rf"{PROJECT['name']}\[(.+)\]")


def required(extra: str) -> list[str]:
    """With what the extras that it names require."""
    listed: list[str] = PROJECT["optional-dependencies"][extra]
    named = [name for r in listed if (ours := OURS.fullmatch(r)) for name in ours[1].split(",")]
    plain = [r for r in listed if not OURS.fullmatch(r)]
    return plain + [r for name in named for r in required(name)]


EXTRAS = {name: modules(required(name)) for name in PROJECT["optional-dependencies"]}
PROGRAMS = ("relay", "operator", "spark")
KINDS = PublisherSettings.kinds()
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


def test_every_publisher_has_its_package_and_what_it_needs_comes_with_the_relay() -> None:
    packages = {found.name for found in pkgutil.iter_modules(publishers.__path__) if found.ispkg}
    assert packages == set(KINDS)
    for kind in KINDS:
        offered = registry.package_of(kind)
        assert callable(offered.make)
        assert callable(offered.validate)
        assert EXTRAS.get(kind, set()) <= EXTRAS["relay"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_publisher_needs_no_other_ones_client(kind: str) -> None:
    others = set().union(*(EXTRAS.get(other, set()) for other in KINDS if other != kind))
    run = import_without(others - EXTRAS.get(kind, set()), f"outbox_relay.publishers.{kind}")
    assert run.returncode == 0, run.stderr


def test_the_relay_starts_without_the_client_of_any_publisher() -> None:
    clients = set().union(*(EXTRAS.get(kind, set()) for kind in KINDS))
    modules = ["registry", "protocol", "destinations", "messages"]
    names = [f"outbox_relay.publishers.{module}" for module in modules]
    run = import_without(clients, "outbox_relay.cli", "outbox_relay.worker", *names)
    assert run.returncode == 0, run.stderr


def test_the_blocker_blocks() -> None:
    run = import_without({"psycopg"}, "outbox_core.store")
    assert run.returncode != 0
    assert "psycopg belongs to another program" in run.stderr
