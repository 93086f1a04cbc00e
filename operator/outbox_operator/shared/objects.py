"""
What all our custom resources have: group and version, metadata, references to Secrets.

The base of each kind's resource. A body from the API server enters the operator only through
`parse`.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, PrivateAttr, ValidationError

from outbox_core.contract.settings import explain
from outbox_core.contract.values import Settings, Time

GROUP = "outbox.dev"
VERSION = "v1alpha1"
API_VERSION: Final = "outbox.dev/v1alpha1"

REVISION = "outbox.dev/revision"
"""An annotation of a relay's pods: the version of the pod template that they were made from."""

Count = Annotated[int, Field(ge=0)]
UNSEEN = -1
Generation = Annotated[int, Field(ge=UNSEEN)]
"""The generation that an operator has seen. The API server gives a new resource UNSEEN, because
tools that wait for any kind of resource (kstatus) consider one without status done."""
ObjectName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
"""A name that Kubernetes accepts for most kinds of object."""
Quantity = (
    Annotated[int, Field(ge=0)]
    | Annotated[
        str, Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
    ]
)
"""An amount of cpu or memory: `500m`, `1`, `256Mi`."""
Body = Mapping[str, Any]
"""An object as the API server returns it."""
Key = tuple[str, str, str]
"""Kind, namespace and name of a custom resource."""
OTHERS_FIELDS = ("uid", "generation", "deletionTimestamp", "finalizers", "labels", "annotations")
"""Fields of the metadata that others change. The generation changes with every change of the
spec."""
PlainObject = Mapping[str, Any]
"""A type of Kubernetes itself, whose content we do not check."""


class Metadata(Settings):
    """The part of the metadata that we read; the rest is the API server's."""

    model_config = ConfigDict(extra="ignore")

    name: str
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    finalizers: tuple[str, ...] = ()


class Status(Settings):
    """Base of what the operator writes. Fields of a newer operator are ignored, so that a rollback
    to an older one works."""

    model_config = ConfigDict(extra="ignore")

    def written(self) -> dict[str, Any]:
        """As the resource holds it."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Resource(Settings):
    """Base of all kinds."""

    api_version: str = API_VERSION
    kind: str
    metadata: Metadata
    _unknown_fields: tuple[str, ...] = PrivateAttr(())

    @property
    def unknown_fields(self) -> tuple[str, ...]:
        """Paths of what the API server sent and this version does not know: it was ignored."""
        return self._unknown_fields

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """From what the API server sent. As strict as the API server (no text for a number, no
        other spelling of a field), so that both judge alike.

        Fields that this version does not know are ignored. The API server drops fields that its
        CRDs do not have, so these come from newer CRDs: their defaults are in every resource, and
        an older operator must keep working."""
        try:
            return cls._parse(body)
        except ValidationError as error:
            unknown = [e["loc"] for e in error.errors() if e["type"] == "extra_forbidden"]
            if not unknown:
                raise
        paths = tuple(".".join(map(str, path)) for path in unknown)
        try:
            parsed = cls._parse(without(body, unknown))
        except ValidationError as error:
            error.add_note(ignored_fields(paths))
            raise
        parsed._unknown_fields = paths
        return parsed

    @classmethod
    def _parse(cls, body: Mapping[str, Any]) -> Self:
        return cls.model_validate_json(json.dumps(body), strict=True, by_alias=True, by_name=False)


def others_part(body: Body) -> dict[str, Any]:
    """What others change in a resource, and the operator's own status updates do not."""
    return {name: body["metadata"].get(name) for name in OTHERS_FIELDS}


def ignored_fields(paths: Sequence[str]) -> str:
    return f"ignored, because this operator does not know it: {', '.join(paths)}"


def without(body: Mapping[str, Any], paths: Sequence[tuple[int | str, ...]]) -> dict[str, Any]:
    """A copy without the fields at these paths."""
    left = copy.deepcopy(dict(body))
    for *parents, name in paths:
        place: Any = left
        for parent in parents:
            place = place[parent]
        del place[name]
    return left


class SecretKeyRef(Settings):
    """One key of a Secret in the resource's own namespace."""

    name: ObjectName
    """The name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """The key in that Secret."""


def without_spec(body: Body) -> Resource:
    """A resource whose spec is unusable, or no longer relevant."""
    return Resource.model_validate(
        {k: body[k] for k in ("apiVersion", "kind", "metadata")}, by_alias=True
    )


def why_invalid(error: ValidationError) -> str:
    """What is wrong with a spec, in one line."""
    return "; ".join(line.strip() for line in explain(error).splitlines())


def without_defaults(settings: Settings) -> dict[str, Any]:
    """The settings as a file holds them."""
    return settings.model_dump(mode="json", by_alias=True, exclude_defaults=True)
