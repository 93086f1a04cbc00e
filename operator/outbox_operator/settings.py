"""
Settings of the operator process: environment variables, each with its default and the reason for
it. The chart sets them; `__main__` reads them once and passes them on.
"""

import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from outbox_core import __version__
from outbox_core.contract.settings import explain
from outbox_core.contract.values import Duration, Settings
from outbox_core.errors import SettingsError
from outbox_operator.kinds import CUSTOM_KINDS

PREFIX = "OUTBOX_OPERATOR_"


class OperatorSettings(Settings):
    identity: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        default_factory=lambda: f"local/{socket.gethostname()}"
    )
    """Written on every child. Two operators that manage the same resources notice each other by it,
    so it must be unique in a cluster, and stay the same when the operator restarts. Default:
    `local/` and the host's name."""
    relay_image: Annotated[str, Field(min_length=1)] = f"outbox-relay:{__version__}"
    """The image of relays whose resource names none."""
    spark_image: Annotated[str, Field(min_length=1)] = f"outbox-spark:{__version__}"
    """The image of replays whose resource names none."""
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    """The pull policy of both. Empty: Kubernetes chooses it by the image's tag."""
    fixed_ids: bool = True
    """Run pods as the images' user and group. Set it to false where the cluster assigns its own ids
    and refuses others, as OpenShift does. A resource's `pod.securityContext` wins."""
    driver_role: Annotated[str, Field(min_length=1)] = "outbox-operator-driver"
    """The Role, or without `namespaces` the ClusterRole, that lets a replay's driver create its
    executors. The operator does not create it, the chart does: the operator may only bind it."""
    namespaces: tuple[str, ...] = ()
    """Separated by commas. Empty: all namespaces, which needs a ClusterRole."""
    interval: Annotated[Duration, Field(ge=timedelta(seconds=1))] = timedelta(seconds=10)
    """How often pods are asked for their report while something is happening."""
    idle_interval: Annotated[Duration, Field(ge=timedelta(seconds=1))] = timedelta(seconds=30)
    """How often while no events wait and all is well: five hundred idle relays cost almost nothing,
    and a new problem shows within half a minute. Children are also watched: a change of theirs is
    seen at once."""
    secret_interval: Annotated[Duration, Field(ge=timedelta(seconds=1))] = timedelta(minutes=1)
    """How often Secrets are checked for changes: a new password is used within this time."""
    rollout_delay: Annotated[Duration, Field(ge=timedelta(0))] = timedelta(seconds=2)
    """The pause between two relays whose pods change because the operator changed, such as its
    default image. A pod takes about as long to start, so that only a few start at a time, instead
    of those of hundreds of relays on the same nodes and databases. Edits of a resource never
    wait."""
    forbid: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """By kind: fields that its resources may not set. Each kind has a variable of its own, such as
    OUTBOX_OPERATOR_RELAY_FORBID."""
    workers: Annotated[int, Field(ge=1, le=100)] = 8
    """How many resources are reconciled at the same time."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """The port of /healthz, /readyz and /metrics."""
    log_format: Literal["json", "text"] = "json"
    """json for log collectors, text for people."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """info: one line for everything that matters. warning: only problems."""

    @field_validator("namespaces", mode="before")
    @classmethod
    def from_commas(cls, value: object) -> object:
        return separated(value) if isinstance(value, str) else value

    @field_validator("forbid")
    @classmethod
    def known(cls, forbid: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        for name, fields in forbid.items():
            kind = CUSTOM_KINDS[name]
            if unknown := sorted({*fields} - {*kind.forbiddable}):
                raise ValueError(
                    f"{PREFIX}{kind.forbid_setting.upper()} has {', '.join(unknown)}; it may have "
                    f"{', '.join(kind.forbiddable)}"
                )
        return forbid


def variables() -> dict[str, str]:
    """By name: what each environment variable means, for people."""
    found: dict[str, str] = {}
    for name, field in OperatorSettings.model_fields.items():
        if name != "forbid":
            found[PREFIX + name.upper()] = field.description or ""
            continue
        for kind in CUSTOM_KINDS.values():
            found[PREFIX + kind.forbid_setting.upper()] = (
                f"Fields that an {kind.name} may not set, separated by commas; podSettings stands "
                f"for all of spec.pod. Any of: {', '.join(kind.forbiddable)}."
            )
    return found


def separated(text: str) -> tuple[str, ...]:
    """By commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def load(environ: Mapping[str, str]) -> OperatorSettings:
    """Unknown variables with our prefix are errors: otherwise a misspelt one would do nothing."""
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX)
    }
    forbid = {
        kind.name: fields
        for kind in CUSTOM_KINDS.values()
        if (fields := separated(given.pop(kind.forbid_setting, "")))
    }
    given.setdefault("forbid", forbid)
    try:
        return OperatorSettings.model_validate(given)
    except ValidationError as error:
        raise SettingsError(f"environment ({PREFIX}*):\n{explain(error)}") from error
