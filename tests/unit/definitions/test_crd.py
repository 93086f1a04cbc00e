"""The CRDs: current, complete, and with every rule that the models have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from dev.reference import definitions, resources
from outbox_operator.definitions.crd import DEFINITIONS, crd
from outbox_operator.definitions.rules import IMMUTABLE, RULES
from outbox_operator.relay.spec.resource import RelaySpec, RelayStatus
from outbox_operator.replay.spec.resource import ReplaySpec, ReplayStatus

ROOT = Path(__file__).resolve().parents[3]
CRDS = {definition.kind.name: crd(definition) for definition in DEFINITIONS}
SPECS: tuple[type[BaseModel], ...] = tuple(d.model for d in DEFINITIONS)


FILES: dict[Path, str] = definitions.files()


def version(kind: str) -> dict[str, Any]:
    (only,) = CRDS[kind]["spec"]["versions"]
    assert isinstance(only, dict)
    return only


def schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = version(kind)["schema"]["openAPIV3Schema"]
    return found


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, with its path."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}".lstrip("."))
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[]")


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model and all models in its fields."""
    yield model
    for field in model.model_fields.values():
        yield from models_in(field.annotation)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from models(annotation)
    for argument in get_args(annotation):
        yield from models_in(argument)


ALL = {model for spec in SPECS for model in models(spec)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.name))
def test_the_files_are_current(path: Path) -> None:
    assert path.read_text() == FILES[path], "make docs"


def test_the_folder_holds_nothing_else() -> None:
    assert set((ROOT / "crds").iterdir()) == set(FILES)


def test_the_reference_is_current() -> None:
    page = (ROOT / "docs" / "resources.md").read_text()
    assert page == resources.page(), "make docs"


@pytest.mark.parametrize("model", sorted(ALL, key=str), ids=str)
def test_a_model_with_a_validator_has_a_rule_for_the_api_server(model: type[BaseModel]) -> None:
    assert bool(model.__pydantic_decorators__.model_validators) == (model in RULES)


def test_every_rule_is_of_a_model_that_is_used() -> None:
    assert set(RULES) <= ALL
    assert set(IMMUTABLE) <= ALL


@pytest.mark.parametrize("kind", CRDS)
def test_every_field_is_explained(kind: str) -> None:
    silent = [
        path
        for path, node in nodes(schema(kind))
        if not path.endswith("[]") and not node.get("description")
    ]
    assert silent == ["apiVersion", "kind", "metadata"]


@pytest.mark.parametrize("kind", CRDS)
def test_the_schema_is_structural(kind: str) -> None:
    for path, node in nodes(schema(kind)):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "definitions", "patternProperties", "oneOf", "allOf"} & set(node), path
        assert "null" not in str(node.get("type")), path


@pytest.mark.parametrize("kind", CRDS)
def test_every_rule_explains_what_to_change(kind: str) -> None:
    for path, node in nodes(schema(kind)):
        for rule in node.get("x-kubernetes-validations", []):
            assert len(rule["message"].split()) >= 4, path


@pytest.mark.parametrize(
    ("kind", "part", "model"),
    [
        ("OutboxRelay", "spec", RelaySpec),
        ("OutboxRelay", "status", RelayStatus),
        ("OutboxReplay", "spec", ReplaySpec),
        ("OutboxReplay", "status", ReplayStatus),
    ],
)
def test_every_field_of_the_model_is_in_the_schema(
    kind: str, part: str, model: type[BaseModel]
) -> None:
    there = set(schema(kind)["properties"][part]["properties"])
    assert there == {field.alias for field in model.model_fields.values()}


def test_names_columns_and_subresources_are_as_designed() -> None:
    relay, replay = (CRDS[kind]["spec"]["names"] for kind in ("OutboxRelay", "OutboxReplay"))
    assert (relay["shortNames"], replay["shortNames"]) == (["obr"], ["obrp"])
    assert relay["categories"] == replay["categories"] == ["outbox"]
    assert narrow("OutboxRelay") == [
        "Ready", "Degraded", "Paused", "Replicas", "Pending", "Dead", "Lag", "Age",
    ]  # fmt: skip
    assert narrow("OutboxReplay") == ["Phase", "Matched", "Replayed", "Progress", "Age"]
    assert set(version("OutboxRelay")["subresources"]) == {"status", "scale"}
    assert set(version("OutboxReplay")["subresources"]) == {"status"}


def narrow(kind: str) -> list[str]:
    """The columns without -o wide."""
    columns = version(kind)["additionalPrinterColumns"]
    return [column["name"] for column in columns if not column.get("priority")]


@pytest.mark.parametrize("kind", CRDS)
def test_every_column_shows_a_field_that_exists(kind: str) -> None:
    paths = {path for path, _ in nodes(schema(kind))}
    for column in version(kind)["additionalPrinterColumns"]:
        path = column["jsonPath"].split("[?")[0].lstrip(".")
        assert path in paths or path == "metadata.creationTimestamp", column
