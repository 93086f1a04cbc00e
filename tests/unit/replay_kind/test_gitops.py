"""Replays that a GitOps tool keeps: their time to live would bring their events out again."""

import pytest

from fixtures.made_replays import running
from fixtures.made_resources import outbox_replay
from outbox_operator.replay.decide.gitops import (
    decide_kept_notices,
    why_it_stays,
    with_reason_to_stay,
)
from outbox_operator.replay.spec.resource import OutboxReplay, ReplayStatus

MARKS = [
    ("annotations", "argocd.argoproj.io/tracking-id", "Argo CD"),
    ("labels", "argocd.argoproj.io/instance", "Argo CD"),
    ("labels", "kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("annotations", "kustomize.toolkit.fluxcd.io/checksum", "Flux"),
    ("labels", "helm.toolkit.fluxcd.io/namespace", "Flux"),
    ("annotations", "meta.helm.sh/release-name", "Helm"),
    ("labels", "kapp.k14s.io/app", "kapp"),
]


def marked(where: str, mark: str, **spec: int) -> OutboxReplay:
    replay = outbox_replay(**spec)
    metadata = replay.metadata.model_copy(update={where: {mark: "shop"}})
    return replay.model_copy(update={"metadata": metadata})


@pytest.mark.parametrize(("where", "mark", "tool"), MARKS)
def test_a_replay_that_a_tool_keeps_stays_and_shows_why(where: str, mark: str, tool: str) -> None:
    why = why_it_stays(marked(where, mark, ttlSecondsAfterFinished=60)) or ""
    assert f"{tool} would create this OutboxReplay again" in why
    assert "kubectl create" in why
    assert "generateName" in why


@pytest.mark.parametrize(
    ("where", "mark"),
    [
        ("labels", "app.kubernetes.io/instance"),
        ("labels", "app.kubernetes.io/managed-by"),
        ("annotations", "argocd.argoproj.io/sync-wave"),
    ],
)
def test_other_marks_are_no_proof(where: str, mark: str) -> None:
    replay = marked(where, mark, ttlSecondsAfterFinished=60)
    assert why_it_stays(replay) is None
    assert decide_kept_notices(replay, running()) == []


def test_without_a_time_to_live_there_is_nothing_to_leave_out() -> None:
    assert why_it_stays(marked(*MARKS[0][:2])) is None


def test_its_start_is_announced_once() -> None:
    replay = marked(*MARKS[0][:2])
    (notice,) = decide_kept_notices(replay, ReplayStatus(attempts=1))
    assert (notice.reason, notice.warning) == ("KeptInGit", True)
    assert "Argo CD" in notice.message
    later = replay.model_copy(update={"status": ReplayStatus(attempts=1)})
    assert decide_kept_notices(later, ReplayStatus(attempts=2)) == []
    assert decide_kept_notices(replay, ReplayStatus()) == []


def test_the_reason_is_added_to_the_message_once() -> None:
    done = ReplayStatus(phase="Succeeded", message="200 of 200 events")
    told = with_reason_to_stay(done, "it stays")
    assert told.message == "200 of 200 events; it stays"
    assert with_reason_to_stay(told, "it stays") == told
    assert with_reason_to_stay(ReplayStatus(), "it stays").message == "it stays"
