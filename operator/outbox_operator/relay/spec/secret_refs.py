"""
From a publisher as people write it to the one that the relay reads: every reference to a Secret
becomes the path of a file, which the pod must have.

Called by `settings`. It knows no kind: names and types of the fields are enough.

| in the resource | in relay.yaml |
|---|---|
| `x_secret_ref: SecretKeyRef` | `x_file: Path` if the contract has it, otherwise `x: SecretRef` |
| `secret_refs: tuple[SecretKeyRef, ...]` | `secrets: tuple[SecretRef, ...]` |
| `service_account_token: ServiceAccountToken` | `token: SecretRef` |
| any other | the same, under the same name; inner models likewise |
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from outbox_core.contract.values import Settings
from outbox_operator.relay.spec.publishers.common import ServiceAccountToken
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.store import secret_path

REF, REFS = "_secret_ref", "secret_refs"


@dataclass
class Translated:
    """What becomes of it, and the files below `SECRETS_PATH` that it then refers to."""

    written: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, SecretKeyRef] = field(default_factory=dict)
    tokens: dict[str, ServiceAccountToken] = field(default_factory=dict)


def translate(given: Settings, contract: type[BaseModel], place: str) -> Translated:
    """`place` is where the files' names begin: the kind's name."""
    made = Translated()
    made.written = _model(given, contract, place, made)
    return made


def _model(
    given: Settings, contract: type[BaseModel], place: str, made: Translated
) -> dict[str, Any]:
    plain = given.model_dump(mode="json", exclude_none=True)
    written: dict[str, Any] = {}
    for name, value in ((name, getattr(given, name)) for name in plain):
        inner = f"{place}-{name.replace('_', '-')}"
        match value:
            case SecretKeyRef():
                what = name.removesuffix(REF)
                file = inner.removesuffix(REF.replace("_", "-"))
                made.secrets[file] = value
                if f"{what}_file" in contract.model_fields:
                    written[f"{what}_file"] = secret_path(file)
                else:
                    written[what] = {"file": secret_path(file)}
            case ServiceAccountToken():
                made.tokens[inner] = value
                written["token"] = {"file": secret_path(inner)}
            case tuple() if name.endswith(REFS):
                files = {f"{inner.removesuffix('-refs')}-{n}": ref for n, ref in enumerate(value)}
                made.secrets |= files
                written[f"{name.removesuffix('_refs')}s"] = [
                    {"file": secret_path(file)} for file in files
                ]
            case Settings():
                written[name] = _model(value, model_of(contract, name), inner, made)
            case tuple() if any(isinstance(item, Settings) for item in value):
                written[name] = [
                    _model(item, model_of(contract, name), f"{inner}-{n}", made)
                    for n, item in enumerate(value)
                ]
            case _:
                written[name] = plain[name]
    return {to_camel(name): value for name, value in written.items()}


def model_of(contract: type[BaseModel], name: str) -> type[BaseModel]:
    (found,) = _models_in(contract.model_fields[name].annotation)
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, tuple):
        for part in get_args(annotation):
            yield from _models_in(part)
