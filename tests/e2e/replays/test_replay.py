"""An OutboxReplay from its dry run to its end, and what people see of it meanwhile."""

from typing import Any

import pytest

from fixtures.gitops import argocd_health, kstatus
from fixtures.replay_shop import Replays
from fixtures.shop import Shop

pytestmark = pytest.mark.timeout(300)

LOCAL: dict[str, Any] = {
    "engine": "Job",
    "driver": {"cpu": "100m"},  # so that a small node takes two at once
    "executor": {"instances": 0},
}
"""The driver does it all: a few seconds less than with executors."""


def judged(replays: Replays, name: str) -> tuple[str, str]:
    """By Argo CD and by kstatus."""
    resource = replays.resource(name)
    return argocd_health(resource)[0], kstatus(resource)


def test_a_dry_run_tells_and_changes_nothing_and_the_replay_does_what_it_told(shop: Shop) -> None:
    replays = Replays(shop)
    replays.open_shop(ordering="Key")
    replays.make_past(events=1000, dead=400)
    before = replays.states()

    replays.create("look", dryRun=True, **LOCAL)
    told = replays.wait_phase("Succeeded", name="look")
    assert (told["matched"], told.get("replayed", 0)) == (400, 0)
    preview = told["preview"]
    assert [(t["eventType"], t["state"], t["count"]) for t in preview["byType"]] == [
        ("order.shipped", "DEAD", 400)
    ]
    assert (preview["keys"], len(preview["samples"])) == (200, 20)
    assert any("later events" in warning for warning in preview["warnings"])
    assert replays.condition("Complete", "look")["status"] == "True"
    assert replays.states() == before

    replays.create(**LOCAL)
    done = replays.wait_phase("Succeeded")
    assert (done["matched"], done["replayed"], done["percent"]) == (400, 400, 100)
    assert (done["engine"], done["attempts"], done["requestedBy"]) == ("Job", 1, "ada@example.com")
    assert replays.condition("Complete")["status"] == "True"
    assert judged(replays, "again") == ("Healthy", "Current")
    happened = replays.events()  # a phase may be shorter than the time between two looks
    assert (happened[0], happened[-1]) == ("AttemptStarted", "Succeeded")
    assert set(happened) <= {"AttemptStarted", "Planning", "Running", "Succeeded"}
    shop.wait_published(1000)
    assert shop.arrived(400, topic=replays.topic) == {"missing": 0, "again": 0, "disorder": 0}
    assert replays.messages() == 400
    audited = shop.sql(
        "SELECT actor, action, reason FROM outbox.audit WHERE action LIKE 'replay-%' ORDER BY id"
    )
    assert audited == [
        "ada@example.com|replay-begin|a test",
        "ada@example.com|replay-end|a test",
    ]


def test_what_cannot_be_asked_for_is_told_and_changes_nothing(shop: Shop) -> None:
    replays = Replays(shop)
    replays.create("nobody", relay="unknown", **LOCAL)
    replays.open_shop()
    replays.make_past(events=100, dead=40)
    before = replays.states()
    shop.namespace.wait(
        lambda: replays.condition("Accepted", "nobody").get("reason") == "RelayMissing",
        30,
        "that there is no such relay",
    )
    assert judged(replays, "nobody") == ("Progressing", "InProgress")  # it may be on its way
    replays.create("pattern", select={"errorMatches": "(too large"}, **LOCAL)
    replays.create("wide", maxEvents=39, **LOCAL)
    for name, reason in (("pattern", "SelectionInvalid"), ("wide", "TooManyEvents")):
        replays.wait_phase("Failed", name=name)
        failed = replays.condition("Failed", name)
        assert (failed["status"], failed["reason"]) == ("True", reason)
        assert replays.status(name)["attempts"] == 1  # another one would say the same
        assert judged(replays, name) == ("Degraded", "Failed")
    assert replays.states() == before
    assert replays.ledger() == {}


def test_a_replay_that_is_deleted_midway_keeps_what_is_done(shop: Shop) -> None:
    replays = Replays(shop)
    replays.open_shop()
    replays.make_past(events=4000, dead=4000)
    replays.create(rate={"eventsPerSecond": 100}, ttlSecondsAfterFinished=1, **LOCAL)
    replays.wait_replayed(200)
    replays.delete()
    shop.namespace.wait(lambda: not replays.exists(), 60, "no OutboxReplay")
    replays.wait_no_pods()
    (done,) = replays.ledger().values()
    assert 200 <= done < 4000
    shop.wait_published(done)
    assert replays.states() == {"PUBLISHED": done, "DEAD": 4000 - done}
    stopped = "SELECT after->>'replayed' FROM outbox.audit WHERE action = 'replay-stop'"
    assert shop.sql(stopped) == [str(done)]

    replays.create(rate={"eventsPerSecond": 100_000}, ttlSecondsAfterFinished=1, **LOCAL)
    shop.wait_published(4000)  # another one of that name takes the rest
    shop.namespace.wait(lambda: not replays.exists(), 60, "deleted after its time")
    assert shop.arrived(4000, topic=replays.topic)["missing"] == 0
    assert replays.messages() == 4000


def test_a_new_relay_gets_the_past_that_it_never_had(shop: Shop) -> None:
    replays = Replays(shop)
    replays.open_shop(ordering="Key")
    replays.make_past(events=1000, dead=0)
    late = shop.to(f"{shop.topic}.{{event_type}}")
    shop.apply("late", publisher=late, ordering="Key")
    shop.wait_settled(name="late")
    replays.create(relay="late", action="Backfill", **LOCAL)
    done = replays.wait_phase("Succeeded")
    assert (done["matched"], done["replayed"]) == (1000, 1000)
    assert shop.arrived(1000, topic=replays.topic) == {"missing": 0, "again": 0, "disorder": 0}
    assert replays.messages() == 1000
