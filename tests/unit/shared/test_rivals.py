"""Two operators on one resource: which one takes over, which backs off, and what both show."""

from datetime import datetime, timedelta
from typing import Any

from fixtures.made_seen import NOW
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.marks import OPERATOR
from outbox_operator.shared.rivals import (
    BACK_OFF_TIME,
    SHOWN_TIME,
    Rivalry,
    judge_rivals,
    rivals_message,
    what_rivals_restrain,
)
from outbox_operator.shared.seen import Written

ME, OTHER = "a/outbox", "b/outbox"
KEY = ("ConfigMap", "orders-relay")
ALSO = ("Service", "orders-relay")
SECOND = timedelta(seconds=1)


def child(identity: str | None, version: str = "2") -> dict[tuple[str, str], Any]:
    annotations = {OPERATOR: identity} if identity else {}
    body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
    return {KEY: body, ALSO: body}


def wrote(at: datetime, version: str = "1") -> dict[tuple[str, str], Written]:
    return {KEY: Written(at, version), ALSO: Written(at, version)}


def reported(message: str) -> list[Condition]:
    given = {"type": "Degraded", "status": "True", "reason": "OtherOperator"}
    return [Condition.model_validate({**given, "message": message, "last_transition_time": NOW})]


def judged(before: Rivalry, children: Any, written: Any = None, **given: Any) -> Rivalry:
    now = given.get("now", NOW)
    return judge_rivals(before, ME, children, written or {}, given.get("reported", ()), now)


def test_one_that_wrote_nothing_yet_takes_over() -> None:
    assert judged(Rivalry(), child(OTHER)) == Rivalry()


def test_one_that_wrote_long_ago_takes_over() -> None:
    assert judged(Rivalry(), child(OTHER), wrote(NOW - BACK_OFF_TIME)) == Rivalry()


def test_one_whose_write_is_soon_undone_backs_off_and_shows_why() -> None:
    found = judged(Rivalry(), child(OTHER), wrote(NOW - BACK_OFF_TIME + SECOND))
    assert found.backs_off(NOW + BACK_OFF_TIME - SECOND)
    assert not found.backs_off(NOW + BACK_OFF_TIME)
    shown = what_rivals_restrain(found, NOW)
    assert shown is not None
    assert shown.blocks_writes
    assert shown.message == rivals_message(OTHER, ME) == rivals_message(ME, OTHER)


def test_a_watch_that_lags_is_no_rival() -> None:
    assert judged(Rivalry(), child(OTHER, "2"), wrote(NOW, "3")) == Rivalry()


def test_what_bears_no_mark_or_ours_is_no_rivals() -> None:
    for identity in (None, ME):
        assert judged(Rivalry(), child(identity), wrote(NOW)) == Rivalry()


def test_one_child_that_is_undone_is_repaired_and_the_second_time_it_is_a_rival() -> None:
    """`kubectl rollout undo` brings back an old mark, once."""
    undone = {KEY: child(OTHER)[KEY], ALSO: child(ME)[ALSO]}
    once = judged(Rivalry(), undone, wrote(NOW))
    assert not once.backs_off(NOW)
    assert what_rivals_restrain(once, NOW) is None
    later = NOW + SECOND
    assert not judged(once, child(ME, "3"), wrote(NOW, "3"), now=later).backs_off(later)
    undone = {KEY: child(OTHER, "4")[KEY], ALSO: child(ME)[ALSO]}
    assert judged(once, undone, wrote(NOW, "3"), now=later).backs_off(later)
    much_later = NOW + BACK_OFF_TIME
    assert not judged(once, undone, wrote(much_later, "3"), now=much_later).backs_off(much_later)


def test_a_name_that_begins_with_ours_is_not_ours() -> None:
    strangers = reported(rivals_message(f"{ME}-2", OTHER))
    assert judged(Rivalry(), child(ME), reported=strangers) == Rivalry()


def test_after_its_rest_it_tries_once_more_and_rests_again_if_that_is_undone() -> None:
    rested = judged(Rivalry(), child(OTHER), wrote(NOW))
    later = NOW + BACK_OFF_TIME
    tries = judged(rested, child(OTHER), wrote(NOW), now=later)
    assert not tries.backs_off(later)
    assert what_rivals_restrain(tries, later) is not None  # shown until it is known to be over
    again = judged(tries, child(OTHER, "9"), wrote(later, "8"), now=later + SECOND)
    assert again.backs_off(later + SECOND)


def test_it_goes_when_the_other_one_is_gone() -> None:
    rested = judged(Rivalry(), child(OTHER), wrote(NOW))
    later = NOW + SHOWN_TIME
    assert judged(rested, child(ME), wrote(NOW + BACK_OFF_TIME), now=later - SECOND).message
    assert judged(rested, child(ME), wrote(NOW + BACK_OFF_TIME), now=later) == Rivalry()


def test_the_one_that_goes_on_shows_what_the_other_reported_and_writes() -> None:
    message = rivals_message(ME, OTHER)
    found = judged(Rivalry(), child(ME), wrote(NOW), reported=reported(message))
    shown = what_rivals_restrain(found, NOW)
    assert shown is not None
    assert (shown.message, shown.blocks_writes) == (message, False)
    assert judged(found, child(ME), now=NOW + SHOWN_TIME, reported=reported(message)) == Rivalry()


def test_a_report_about_others_is_not_believed() -> None:
    strangers = reported(rivals_message("c/outbox", "d/outbox"))
    assert judged(Rivalry(), child(ME), reported=strangers) == Rivalry()
