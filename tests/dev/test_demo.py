"""The demo's own parts: what is shown is what ran, and what does not happen ends it."""

import ast
import os
import sys
from pathlib import Path

import pytest
import yaml

from dev.demo.stage import APPS, IMAGES, Wish, write_files
from dev.demo.terminal import DemoError, Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, os.environ)


def test_a_command_is_shown_as_it_can_be_typed_with_what_it_printed(
    terminal: Terminal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "given").write_text("two words\n")
    assert terminal.show("sed 's/two/three/'", tmp_path / "given") == "three words\n"
    assert capsys.readouterr().out == "  $ sed 's/two/three/' < given\n    three words\n"


def test_a_command_that_fails_ends_the_demo_with_what_it_said(terminal: Terminal) -> None:
    with pytest.raises(DemoError, match=r"ls missing: .*No such file"):
        terminal.show("ls missing")


def test_what_does_not_happen_ends_the_demo(terminal: Terminal) -> None:
    with pytest.raises(DemoError, match=r"did not happen within 0\.1 s: it rains"):
        terminal.wait(lambda: False, 0.1, "it rains")


def test_the_files_that_are_applied_name_the_images_of_the_cluster(tmp_path: Path) -> None:
    references = {name: f"registry.example.com:5000/team/{name}:1" for name in IMAGES}
    write_files(Wish("shop", "system", 1, True, tmp_path), references)
    values = yaml.safe_load((tmp_path / "values.yaml").read_text())
    assert values["images"]["relay"] == {
        "repository": "registry.example.com:5000/team/relay",
        "tag": "1",
    }
    assert values["watch"]["namespaces"] == ["shop"]
    images = {
        container["image"]
        for file in ("backends.yaml", "shop.yaml", "billing.yaml")
        for body in yaml.safe_load_all((tmp_path / file).read_text())
        if body["kind"] == "Deployment"
        for container in body["spec"]["template"]["spec"]["containers"]
    }
    assert images == {references[name] for name in ("relay", "postgres", "kafka")}


def test_ce_10_the_service_that_emits_talks_to_its_database_alone() -> None:
    tree = ast.parse((APPS / "shop.py").read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - sys.stdlib_module_names == {"psycopg"}
