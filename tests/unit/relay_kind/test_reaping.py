"""The reaper's CronJob rests while relays reap, and does not come and go with every pod."""

from datetime import datetime, timedelta

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, deployment, seen
from outbox_operator.relay.decide.reaping import SOON_BACK_TIME, should_suspend_reaper
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.relay.status import decide_status


def around(ready: int, *, rests: bool, replicas: int = 2) -> RelaySeen:
    reaper = {"metadata": {"name": "orders-reaper"}, "spec": {"suspend": rests}}
    live = deployment(replicas, ready=ready)
    return seen(deployment=live, children={("CronJob", "orders-reaper"): reaper})


def at(ready: int, since: datetime = NOW) -> OutboxRelay:
    """A relay whose status tells of so many ready pods since then."""
    status = decide_status(outbox_relay(), around(ready, rests=True), 2, None, since)
    return outbox_relay().model_copy(update={"status": status})


def rests(relay: OutboxRelay, where: RelaySeen, now: datetime = NOW) -> bool:
    return should_suspend_reaper(relay, where, 2, now)


def test_it_works_until_all_pods_are_there() -> None:
    assert not rests(outbox_relay(), seen())
    assert not rests(at(1), around(1, rests=False))
    assert rests(at(2), around(2, rests=False))


def test_it_rests_on_as_long_as_one_pod_is_ready() -> None:
    assert rests(at(2), around(1, rests=True))


def test_it_works_again_when_none_has_been_ready_for_a_while() -> None:
    none = around(0, rests=True)
    assert rests(at(2), none)  # it is new
    assert rests(at(0), none, NOW + SOON_BACK_TIME - timedelta(seconds=1))
    assert not rests(at(0), none, NOW + SOON_BACK_TIME)
    assert not rests(at(0), around(0, rests=False))


def test_a_pod_that_comes_and_goes_changes_nothing() -> None:
    now, relay, resting = NOW, at(2), True
    for ready in (2, 0, 1, 0, 2, 0, 1):
        resting = rests(relay, around(ready, rests=resting), now)
        assert resting
        relay = at(ready, since=now)
        now += SOON_BACK_TIME / 2


def test_without_pods_it_works() -> None:
    none = around(0, rests=True, replicas=0)
    assert not should_suspend_reaper(at(0), none, 0, NOW + SOON_BACK_TIME)
