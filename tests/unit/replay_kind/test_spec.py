"""OutboxReplay: its defaults, and which requests make no sense."""

import re
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from fixtures.corpus import ROOT, models_refusal
from fixtures.made_resources import outbox_replay
from outbox_core.contract.settings import explain

JUNE, JULY = "2026-06-01T00:00:00Z", "2026-07-01T02:00:00+02:00"


def mistake(**spec: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        outbox_replay(**spec)
    return explain(caught.value)


def test_by_default_the_dead_come_back_slowly_and_with_a_full_budget() -> None:
    spec = outbox_replay().spec
    assert spec.states == ("DEAD",)
    assert (spec.action, spec.dry_run, spec.suspend, spec.reset_attempts) == (
        "Requeue", False, False, True,
    )  # fmt: skip
    assert (spec.rate.events_per_second, spec.rate.yield_to_live) == (1000, True)
    assert (spec.engine, spec.executor.instances, spec.backoff_limit) == (None, 2, 3)


def test_the_published_of_some_time_can_be_asked_for() -> None:
    spec = outbox_replay(
        select={"states": ["PUBLISHED"], "published": {"after": JUNE, "before": JULY}}
    ).spec
    assert spec.states == ("PUBLISHED",)


def test_a_backfill_takes_what_has_no_state() -> None:
    assert (
        outbox_replay(action="Backfill", select={"created": {"after": JUNE}}).spec.select.states
        is None
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"reason": " "}, "spec.reason: String should match pattern"),
        ({"rate": {"eventsPerSecond": 0}}, "spec.rate.eventsPerSecond: Input should be greater"),
        ({"select": {"states": []}}, "spec.select.states: Tuple should have at least 1 item"),
        ({"select": {"states": ["CLAIMED"]}}, "spec.select.states.0: Input should be 'DEAD' or"),
        ({"select": {"states": ["PUBLISHED"]}}, "spec.select: PUBLISHED alone is everything"),
        ({"select": {"published": {"after": JUNE}}}, "spec.select: published needs states"),
        ({"select": {"created": {}}}, "spec.select.created: name at least one of after and"),
        (
            {"select": {"created": {"after": JULY, "before": JUNE}}},
            "spec.select.created: after must be earlier than before",
        ),
        (
            {"select": {"created": {"after": "2026-06-01T00:00:00"}}},
            "spec.select.created.after: '2026-06-01T00:00:00' is not a time",
        ),
        ({"select": {"eventIds": ["1"]}}, "spec.select.eventIds.0: String should match pattern"),
        ({"action": "Backfill", "select": {"states": ["DEAD"]}}, "spec: Backfill takes events"),
        ({"action": "Backfill", "select": {"errorMatches": "x"}}, "spec: Backfill takes events"),
        ({"engine": "Flink"}, "spec.engine: Input should be 'SparkApplication' or 'Job'"),
        ({"executor": {"memory": "1g"}}, "spec.executor.memory: String should match pattern"),
        ({"maxEvents": 0}, "spec.maxEvents: Input should be greater than or equal to 1"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(spec: dict[str, Any], said: str) -> None:
    assert f"  {said}" in mistake(**spec)


def test_the_replays_of_the_guide_can_be_created() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "replays.md").read_text(), re.S)
    bodies = [yaml.safe_load(block) for block in blocks]
    replays = [body for body in bodies if body.get("kind") == "OutboxReplay"]
    assert len(replays) == 4
    for body in replays:
        assert models_refusal(body) == "", body["metadata"]["name"]
    (fragment,) = [body for body in bodies if "kind" not in body]
    assert outbox_replay(**fragment).spec.spark_conf
