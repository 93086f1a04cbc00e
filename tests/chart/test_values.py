"""values.yaml and its schema say the same, and a mistake is refused with words that help."""

import json
import re
import shutil
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.chart import CHART, ROOT, helm, nested, refusal, render
from fixtures.corpus import models_refusal

PARENTS = {"enabled", "global"}
"""What only a parent chart sets: there are no defaults, and nothing here reads them."""
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in schema.get("properties", {}).items():
        whole = f"{path}.{name}".lstrip(".")
        yield whole, inner.get("description", "")
        yield from described(inner, whole)


def commented() -> Iterator[tuple[str, str]]:
    """Each value with the comment above it."""
    path: list[str] = []
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if found := re.match(r" *# ?(.*)", line):
            comment.append(found[1])
        elif found := re.match(r"( *)(\w+):", line):
            path = [*path[: len(found[1]) // 2], found[2]]
            yield ".".join(path), " ".join(comment)
            comment = []
        else:
            comment = []


def paths(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        whole = f"{path}.{name}".lstrip(".")
        yield whole
        if isinstance(value, dict) and "properties" in schema_of(whole):
            yield from paths(value, whole)


def schema_of(path: str) -> dict[str, Any]:
    found = SCHEMA
    for name in path.split("."):
        found = found["properties"][name]
    assert isinstance(found, dict)
    return found


def test_every_value_has_a_comment_which_the_schema_repeats() -> None:
    texts = {path: text for path, text in described(SCHEMA) if path not in PARENTS}
    comments = dict(commented())
    assert all(comments.values())
    assert texts.items() <= comments.items()


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    in_schema = {path for path, _ in described(SCHEMA)} - PARENTS
    assert set(paths(VALUES)) == in_schema


def objects_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if "properties" in schema:
        yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from objects_of(inner, f"{path}.{name}".lstrip("."))


@pytest.mark.parametrize("path", [path for path, _ in objects_of(SCHEMA)])
def test_a_misspelt_value_is_refused(path: str) -> None:
    said = refusal(nested(f"{path}.misspelt".lstrip("."), 1))
    where = "/" + path.replace(".", "/") if path else ""
    assert f"at '{where}': additional properties 'misspelt' not allowed" in said


BAD: dict[str, tuple[list[Any], str]] = {
    "watch.namespaces": ([["Shop"], ["shop", "shop"], "shop", ["*"]], "/watch/namespaces"),
    "images.pullPolicy": (["Sometimes"], "value must be one of '', 'Always', 'IfNotPresent'"),
    "images.registry": (["registry.example.com/"], "does not match pattern"),
    "images.operator.digest": (["sha256:0"], "does not match pattern"),
    "operator.interval": (["10", 10, "0s", "500ms"], "/operator/interval"),
    "operator.workers": ([0, 101, "8"], "/operator/workers"),
    "log.level": (["loud"], "value must be one of 'debug', 'info', 'warning', 'error'"),
    "enabled": (["yes"], "got string, want boolean"),
    "crds.enabled": (["yes"], "got string, want boolean"),
    "pod.imagePullSecrets": ([["registry"], [{}]], "/pod/imagePullSecrets/0"),
    "pod.labels": ([{"a": 1}], "got number, want string"),
    "podDisruptionBudget.maxUnavailable": ([2], "maximum: got 2, want 1"),
    "metrics.rules.lagSeconds": ([0], "minimum: got 0, want 1"),
}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [(path, value, words) for path, (values, words) in BAD.items() for value in values],
)
def test_a_bad_value_is_refused_with_its_place(path: str, value: object, words: str) -> None:
    said = refusal(nested(path, value))
    assert words in said
    assert "/" + path.replace(".", "/") in said


def test_a_parent_chart_may_hand_on_what_is_global() -> None:
    assert render({"global": {"anything": 1}}) == render()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_parent_chart_may_switch_it_on_and_off(tmp_path: Path, enabled: bool) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    on = {"name": CHART.name, "version": version, "condition": "outbox-operator.enabled"}
    parent = {"apiVersion": "v2", "name": "shop", "version": "1.0.0", "dependencies": [on]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(parent))
    shutil.copytree(CHART, tmp_path / "charts" / CHART.name)
    values = {"outbox-operator": {"enabled": enabled}, "global": {"registry": "anywhere"}}
    done = helm("template", "shop", str(tmp_path), values=values)
    assert done.returncode == 0, done.stderr
    assert ("kind: Deployment" in done.stdout) is enabled


# The chart as a package --------------------------------------------------------------------------


def test_the_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_helm_finds_nothing_to_complain_of() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout


def test_a_package_holds_the_crds_themselves(tmp_path: Path) -> None:
    assert helm("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    (package,) = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        for source in ROOT.glob("crds/*.yaml"):
            packed = archive.extractfile(f"outbox-operator/files/crds/{source.name}")
            assert packed
            assert packed.read() == source.read_bytes()


def test_a_chart_that_lost_its_crds_says_so(tmp_path: Path) -> None:
    alone = tmp_path / "outbox-operator"
    for path in CHART.rglob("*"):
        if path.is_file() and "files" not in path.parts:
            copy = alone / path.relative_to(CHART)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    done = helm("template", "x", str(alone))
    assert "the chart has no files/crds" in done.stderr
    assert helm("template", "x", str(alone), "--set", "crds.enabled=false").returncode == 0


# NOTES.txt ---------------------------------------------------------------------------------------


def notes(values: dict[str, Any]) -> str:
    done = helm(
        *("install", "shop", str(CHART), "--namespace", "outbox-system"),
        *("--dry-run=client", "--hide-secret"),
        values=values,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_the_notes_hold_a_relay_that_can_be_applied() -> None:
    said = notes({})
    found = re.search(r"<<EOF\n(.*?)\n +EOF", said, re.S)
    assert found
    assert models_refusal(yaml.safe_load(found[1])) == ""
    assert "kubectl -n default get obr" in said
    assert "in all namespaces" in said


def test_the_notes_speak_of_what_was_installed() -> None:
    said = notes({"watch": {"namespaces": ["shop", "billing"]}, "crds": {"enabled": False}})
    assert "in shop, billing" in said
    assert "kubectl -n shop get obr" in said
    assert "crds.enabled" in said
    assert "images.registry" in said
    assert "images.registry" not in notes({"images": {"registry": "registry.example.com"}})


# docs/install.md ---------------------------------------------------------------------------------

INSTALL = (ROOT / "docs" / "install.md").read_text()


@pytest.mark.parametrize("given", re.findall(r"--set '?([^\s'`]+)", INSTALL))
def test_what_the_document_sets_can_be_set(given: str) -> None:
    done = helm("template", "x", str(CHART), "--set", given)
    assert done.returncode == 0, done.stderr


def test_the_document_names_every_value_or_its_group() -> None:
    table = re.search(r"## Values\n(.*?)\n## ", INSTALL, re.S)
    assert table
    named = set(re.findall(r"`([\w.*]+)`", table[1]))
    known = {path for path, _ in described(SCHEMA)}
    for path in sorted(known - PARENTS):
        groups = {".".join(path.split(".")[:n]) for n in range(1, path.count(".") + 2)}
        inner = any(name.startswith(f"{path}.") for name in named)
        assert inner or groups & {name.removesuffix(".*") for name in named}, path
    assert {name.removesuffix(".*") for name in named if "." in name} <= known
