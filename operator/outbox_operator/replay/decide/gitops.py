"""
GitOps: replays that a tool keeps as they are in Git, or in a release.

Such a tool makes again what is deleted, and a replay that is made again is another one: its events
go out again. So one that bears the mark of a tool is not deleted by its time to live.
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
"""By label or annotation, or how it begins. app.kubernetes.io/instance is none of them: people set
it, too."""


CURE = (
    "create replays with `kubectl create` from outside of Git, with generateName for those that "
    "are made often"
)


def tool_of(metadata: Metadata) -> str | None:
    """Which tool keeps it; the most specific first, because Flux installs by Helm, too."""
    marks = {**metadata.labels, **metadata.annotations}
    for mark, tool in TOOLS.items():
        if any(key == mark or (mark.endswith("/") and key.startswith(mark)) for key in marks):
            return tool
    return None


def why_it_stays(replay: OutboxReplay) -> str | None:
    """Although its time to live is over; None: it does not."""
    tool = tool_of(replay.metadata)
    if tool is None or replay.spec.ttl_seconds_after_finished is None:
        return None
    return (
        f"ttlSecondsAfterFinished is not applied: {tool} would create this OutboxReplay again, and "
        f"its events would go out again. Leave the field out; or {CURE}"
    )


def decide_kept_notices(replay: OutboxReplay, after: ReplayStatus) -> list[Notice]:
    """When the first attempt begins: what a deletion would lead to."""
    tool = tool_of(replay.metadata)
    if tool is None or replay.status.attempts or not after.attempts:
        return []
    text = (
        f"{tool} keeps this OutboxReplay: whenever it is deleted and created again, that is "
        f"another replay, and its events go out again. Better {CURE}"
    )
    return [Notice(EventReason.KEPT_IN_GIT, text, warning=True)]


def with_reason_to_stay(status: ReplayStatus, why: str) -> ReplayStatus:
    """The message is all of a finished replay that is ever added to, and that once: whether it is
    there shows whether it was announced."""
    shown = status.message or ""
    if why in shown:
        return status
    return status.model_copy(update={"message": f"{shown}; {why}" if shown else why})
