"""
From models to structural OpenAPI v3, as a CustomResourceDefinition needs it.

Called by `crd`. Pure. Nothing here is about a single field: its type, bounds, default and docstring
are in its model, its rules in `rules`. Written for the types that the models use; any other type is
a KeyError instead of a guess.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

from outbox_core.contract.values import DURATION, LONGEST_DURATION_CHARS, format_duration
from outbox_operator.definitions.rules import IMMUTABLE, RULES
from outbox_operator.relay.spec.pod import SpreadConstraint
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.pod_settings import EnvVar, PullSecret, Volume, VolumeMount
from outbox_operator.shared.rules import Rule, length, unchanged

Schema = dict[str, Any]

PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    AwareDatetime: {"type": "string", "format": "date-time"},
}
BOUNDS = {
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "integer": {"ge": "minimum", "le": "maximum"},
    "number": {"ge": "minimum", "le": "maximum"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "boolean": {},
    "object": {"max_length": "maxProperties"},
}

LIST_KEYS: Mapping[Any, list[str]] = {
    Condition: ["type"],
    EnvVar: ["name"],
    PullSecret: ["name"],
    SpreadConstraint: ["topologyKey", "whenUnsatisfiable"],
    Volume: ["name"],
    VolumeMount: ["mountPath"],
}
"""The keys of a list's items: no two items may have the same."""


def object_schema(model: type[BaseModel]) -> Schema:
    made: Schema = {"type": "object"}
    if text := one_line(model.__doc__):
        made["description"] = text
    required = [alias(f) for f in model.model_fields.values() if f.is_required()]
    if required:
        made["required"] = required
    made["properties"] = {alias(f): field_schema(f) for f in model.model_fields.values()}
    if model.model_config.get("extra") == "allow":
        made["x-kubernetes-preserve-unknown-fields"] = True
    if rules := [*RULES.get(model, ()), *transition_rules(model)]:
        made["x-kubernetes-validations"] = as_validations(rules)
    return made


def field_schema(field: FieldInfo) -> Schema:
    made = type_schema(field.annotation, field.metadata)
    if field.description:
        made["description"] = one_line(field.description)
    default = default_of(field)
    if default is not None:
        made["default"] = default
    return {key: made[key] for key in ("description", *made) if key in made}


def type_schema(annotation: Any, metadata: list[Any]) -> Schema:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_schema(arguments[0], [*metadata, *arguments[1:]])
    if origin in (Union, UnionType):
        return union_schema([a for a in arguments if a is not NoneType], metadata)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if annotation is timedelta:
        return duration_schema(bounds_of(metadata))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return object_schema(annotation)
    if origin is tuple:
        made: Schema = {"type": "array", "items": type_schema(arguments[0], [])}
        if keys := LIST_KEYS.get(arguments[0]):
            made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        made = {"type": "object", **values_schema(arguments[1])}
    else:
        made = dict(PLAIN[annotation])
    names = BOUNDS[made["type"]]
    return made | {names[name]: value for name, value in bounds_of(metadata).items()}


def values_schema(annotation: Any) -> Schema:
    if annotation is Any:  # a type of Kubernetes, whose content we do not check
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": type_schema(annotation, [])}


def union_schema(choices: list[Any], metadata: list[Any]) -> Schema:
    """An optional field, or Kubernetes' int-or-string: no other union is supported."""
    if len(choices) == 1:
        return type_schema(choices[0], metadata)
    number, text = (type_schema(choice, []) for choice in choices)
    assert (number.pop("type"), text.pop("type")) == ("integer", "string")
    kinds = [{"type": "integer"}, {"type": "string"}]
    number.pop("format")
    return {"anyOf": kinds, "x-kubernetes-int-or-string": True, **number, **text}


def duration_schema(bounds: Mapping[str, timedelta]) -> Schema:
    """CEL cannot compute durations above `values.LONGEST`, and so also refuses them."""
    how = {"ge": (">=", "at least"), "le": ("<=", "at most")}
    rules = [
        Rule(
            f"{length('self')} {how[name][0]} duration('{bound.total_seconds():g}s')",
            f"must be {how[name][1]} {format_duration(bound)}",
        )
        for name, bound in bounds.items()
    ]
    return {
        "type": "string",
        "pattern": f"^({DURATION.pattern})$",
        "maxLength": LONGEST_DURATION_CHARS,
        "x-kubernetes-validations": as_validations(rules),
    }


def bounds_of(metadata: list[Any]) -> dict[str, Any]:
    """The metadata of a type may contain a whole FieldInfo, which has the bounds inside."""
    found: dict[str, Any] = {}
    for item in [m for field in metadata for m in (getattr(field, "metadata", None) or [field])]:
        for name in ("ge", "le", "min_length", "max_length", "pattern"):
            if (value := getattr(item, name, None)) is not None:
                found[name] = value
    return found


def default_of(field: FieldInfo) -> Any:
    """None if there is none: a field that is empty by default needs no default either."""
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    match value:
        case timedelta():
            return format_duration(value)
        case BaseModel():
            assert value == type(value)(), "the default of an object must be its own defaults"
            # All of them: rules judge a default before missing fields are filled in.
            inner = {alias(f): default_of(f) for f in type(value).model_fields.values()}
            return {name: default for name, default in inner.items() if default is not None}
        case tuple():
            return list(value) or None
        case Mapping():
            assert not value
            return None
    return value


def transition_rules(model: type[BaseModel]) -> Iterator[Rule]:
    names, message = IMMUTABLE.get(model, ((), ""))
    for name, field in model.model_fields.items():
        if name in names:
            always_there = field.is_required() or default_of(field) is not None
            yield Rule(unchanged(alias(field), always_there), message)


def as_validations(rules: list[Rule]) -> list[Schema]:
    return [{"rule": rule.cel, "message": rule.message} for rule in rules]


def alias(field: FieldInfo) -> str:
    assert field.alias
    return field.alias


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())
