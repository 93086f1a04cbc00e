"""Replays looked at again: how long one lives after its end, and what is no news."""

from datetime import timedelta
from typing import Any

from fixtures.made_replays import after, running
from fixtures.made_resources import replay_body
from fixtures.made_seen import NOW
from outbox_operator.dispatch import is_news
from outbox_operator.replay.decide.next_reconcile import seconds_to_live

FINISHED = running().model_copy(update={"phase": "Succeeded", "completion_time": NOW})


def test_a_finished_replay_stays_unless_it_has_a_time_to_live() -> None:
    assert seconds_to_live(after(FINISHED), FINISHED, NOW) is None


def test_a_finished_replay_lives_as_long_as_it_was_asked_for() -> None:
    replay = after(FINISHED, ttlSecondsAfterFinished=60)
    assert seconds_to_live(replay, FINISHED, NOW + timedelta(seconds=20)) == 40
    assert seconds_to_live(replay, FINISHED, NOW + timedelta(hours=1)) == 0
    at_once = after(FINISHED, ttlSecondsAfterFinished=0)
    assert seconds_to_live(at_once, FINISHED, NOW) == 0


def body(**metadata: Any) -> dict[str, Any]:
    made = replay_body()
    return {**made, "metadata": {**made["metadata"], **metadata}}


def test_our_own_writing_into_a_status_is_no_news() -> None:
    written = {**body(resourceVersion="2"), "status": {"phase": "Running"}}
    assert not is_news(body(resourceVersion="1"), written)


def test_what_others_write_is_news() -> None:
    assert is_news(None, body())
    for changed in (
        {"generation": 2},
        {"uid": "3"},
        {"deletionTimestamp": "2026-03-01T12:00:00Z"},
        {"annotations": {"outbox.dev/requested-by": "ann"}},
        {"finalizers": ["foregroundDeletion"]},
    ):
        assert is_news(body(), body(**changed))
