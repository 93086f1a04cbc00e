"""
The README of a packaged chart: how to install it, and all of its values.

From the chart alone: what a value means and may be is in values.schema.json, its default in
values.yaml; a test holds both together. Called by `chart`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Schema = Mapping[str, Any]

HEAD = """\
# {name} {version}

{description}

    helm install {name} {name}-{version}.tgz --namespace outbox-system --create-namespace \\
      --set images.registry=registry.example.com/team

It needs Kubernetes {kubernetes} and brings its custom resource definitions. The images are in the
archives of the same release: load them into the nodes, or push them to a registry of yours.

## Values

A value that is not listed here is refused.

| value | type | default | |
|---|---|---|---|
"""


def readme(chart: Path) -> str:
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    head = HEAD.format(
        name=described["name"],
        version=described["version"],
        description=" ".join(described["description"].split()),
        kubernetes=described["kubeVersion"].removesuffix("-0").replace(">=", "at least "),
    )
    rows = [
        f"| `{path}` | {kind_of(found)} | {default(defaults, path)} | {words(found)} |\n"
        for path, found in values(schema)
    ]
    return head + "".join(rows)


def values(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every one that people set, with its schema."""
    for name, found in schema.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        if "properties" in found:
            yield from values(found, place)
        else:
            yield place, found


def kind_of(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    found = schema.get("type", "any")
    return " or ".join(found) if isinstance(found, list) else str(found)


def default(defaults: Mapping[str, Any], path: str) -> str:
    value: Any = defaults
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return ""
        value = value[name]
    return f"`{json.dumps(value)}`"


def words(schema: Schema) -> str:
    return " ".join(str(schema.get("description", "")).split()).replace("|", "\\|")
