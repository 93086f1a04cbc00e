"""
Tables of a document, made from models: fields, types, defaults, docstrings.

Called by `configuration` and `resources`. Nothing about a field is written here: its text is beside
it in its model.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

from outbox_core.contract.values import SecretRef, format_duration
from outbox_operator.shared.objects import Quantity, SecretKeyRef

INLINE = (SecretRef, SecretKeyRef)
"""Explained once, above the tables."""


def sections(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """This model's table, then those of the models in it."""
    yield f"\n## {path or 'Top level'}\n\n"
    yield "| field | type | default | meaning |\n|---|---|---|---|\n"
    inner: list[tuple[str, type[BaseModel]]] = []
    for field in sorted(model.model_fields.values(), key=lambda f: not f.is_required()):
        name = field.alias or ""
        whole = f"{path}.{name}".lstrip(".")
        nested, many = nested_model(field.annotation)
        if nested is None:
            kind = type_of(field.annotation, field.metadata)
        else:
            whole += "[]" * many
            inner.append((whole, nested))
            kind = f"{'list of ' * many}[{whole}](#{anchor(whole)})"
        default = default_of(field)
        yield f"| `{name}` | {cell(kind)} | {cell(default)} | {cell(field.description or '')} |\n"
    for whole, nested in inner:
        yield from sections(nested, whole)


def nested_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The settings inside a field, if it has any, and whether it is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (None if issubclass(annotation, INLINE) else annotation), False
    many = get_origin(annotation) is tuple
    for part in get_args(annotation):
        found, inner_many = nested_model(part)
        if found is not None:
            return found, many or inner_many
    return None, False


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return "".join(c for c in heading.lower() if c.isalnum() or c in "-_")


def type_of(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_of(arguments[0], [*metadata, *arguments[1:]])
    if origin in (Union, UnionType):
        choices = [a for a in arguments if a is not NoneType]
        if choices == list(get_args(Quantity)):
            return "quantity"
        return " or ".join(type_of(a, metadata) for a in choices)
    if origin is Literal:
        return ", ".join(f"`{a}`" for a in arguments)
    if origin is tuple:
        return f"list of {type_of(arguments[0], [])}{bounds_of(metadata, 'items')}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if arguments[1] is Any:
            return "object, as in Kubernetes"
        return f"map of text to {type_of(arguments[1], [])}"
    if isinstance(annotation, type) and issubclass(annotation, SecretKeyRef):
        return "secret key"
    return NAMES[annotation] + bounds_of(metadata)


NAMES: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "`true`, `false`",
    timedelta: "duration",
    Path: "path",
    AwareDatetime: "time",
    SecretRef: "secret",
}


def bounds_of(metadata: list[Any], unit: str = "characters") -> str:
    """`, 1 to 16`; a text that only must not be empty needs no remark."""
    found: dict[str, Any] = {}
    for item in [m for field in metadata for m in (getattr(field, "metadata", None) or [field])]:
        for name in ("ge", "le", "max_length"):
            if (value := getattr(item, name, None)) is not None:
                found[name] = value
    low, high = value_of(found.get("ge")), value_of(found.get("le"))
    if low and high:
        return f", {low} to {high}"
    if low or high:
        return f", at least {low}" if low else f", at most {high}"
    return f", at most {found['max_length']} {unit}" if "max_length" in found else ""


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, SecretRef):
        return f"`{{env: {value.env}}}`"
    if isinstance(value, BaseModel):
        return "as below"
    if value is None or value in ("", (), {}):
        return "none"
    return f"`{value_of(value)}`"


def value_of(value: Any) -> str:
    match value:
        case None:
            return ""
        case timedelta():
            return format_duration(value)
        case bool():
            return str(value).lower()
        case tuple():
            return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
