"""
GitOps: replays that a tool keeps in sync with Git, or with a release.

Such a tool creates a deleted replay again, and that is a new replay: its events are published
again. So a replay with the mark of such a tool is not deleted when its time to live ends.
"""

from outbox_operator.replay.spec.resource import OutboxReplay, ReplayStatus
from outbox_operator.shared.notices import Notice
from outbox_operator.shared.objects import Metadata
from outbox_operator.shared.reasons import EventReason

TOOLS = {
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "argocd.argoproj.io/instance": "Argo CD",
    "kustomize.toolkit.fluxcd.io/": "Flux",
    "helm.toolkit.fluxcd.io/": "Flux",
    "meta.helm.sh/release-name": "Helm",
    "kapp.k14s.io/app": "kapp",
}
"""By label or annotation, or its prefix. app.kubernetes.io/instance is not one of them, because
people set it too."""


CURE = (
    "create replays with `kubectl create` from outside of Git, with generateName for those that "
    "you create often"
)


def tool_of(metadata: Metadata) -> str | None:
    """The tool that manages the resource. The most specific mark comes first, because Flux also
    uses Helm."""
    marks = {**metadata.labels, **metadata.annotations}
    for mark, tool in TOOLS.items():
        if any(key == mark or (mark.endswith("/") and key.startswith(mark)) for key in marks):
            return tool
    return None


def why_it_stays(replay: OutboxReplay) -> str | None:
    """Why the replay is kept although its time to live has ended; None: it is not kept."""
    tool = tool_of(replay.metadata)
    if tool is None or replay.spec.ttl_seconds_after_finished is None:
        return None
    return (
        f"ttlSecondsAfterFinished is not applied: {tool} would create this OutboxReplay again, and "
        f"its events would be published again. Leave the field out; or {CURE}"
    )


def decide_kept_notices(replay: OutboxReplay, after: ReplayStatus) -> list[Notice]:
    """When the first attempt starts: what deleting the replay would lead to."""
    tool = tool_of(replay.metadata)
    if tool is None or replay.status.attempts or not after.attempts:
        return []
    text = (
        f"{tool} manages this OutboxReplay: each time it is deleted and created again, that is "
        f"another replay, and its events are published again. Instead, {CURE}"
    )
    return [Notice(EventReason.KEPT_IN_GIT, text, warning=True)]


def with_reason_to_stay(status: ReplayStatus, why: str) -> ReplayStatus:
    """The only addition to a finished replay's status, made once: its presence shows that it was
    announced."""
    shown = status.message or ""
    if why in shown:
        return status
    return status.model_copy(update={"message": f"{shown}; {why}" if shown else why})
