"""Events: told when something has changed, and not again and again."""

from datetime import timedelta

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, deployment, pod, report, seen
from outbox_operator.decide.autoscaling import Memory, Scale
from outbox_operator.decide.notices import QUIET, Notice, damped, decide_notices
from outbox_operator.decide.status import decide_status
from outbox_operator.resources.conditions import Reason
from outbox_operator.resources.relay import RelayStatus
from outbox_operator.seen import Secret, Seen
from outbox_relay.contract.report import TopError

WELL = seen(pod(report=report()), deployment=deployment())
NO_SECRET = seen(secrets=[Secret("orders-db", None)], deployment=deployment(ready=0))


def status(around: Seen, *, paused: bool = False) -> RelayStatus:
    return decide_status(outbox_relay(paused=paused), around, 1, None, NOW)


def told(before: RelayStatus, after: RelayStatus) -> list[tuple[str, bool]]:
    return [(n.reason, n.warning) for n in decide_notices(before, after, 1, 1, None)]


def test_nothing_new_is_not_told() -> None:
    assert told(status(WELL), status(WELL)) == []
    assert told(RelayStatus(), status(WELL)) == []


def test_trouble_and_its_end_are_told() -> None:
    assert told(status(WELL), status(NO_SECRET)) == [("SecretMissing", True)]
    assert told(status(NO_SECRET), status(NO_SECRET)) == []
    assert told(status(NO_SECRET), status(WELL)) == [("Recovered", False)]


def test_a_pause_and_its_end_are_told() -> None:
    assert told(status(WELL), status(WELL, paused=True)) == [("Paused", False)]
    assert told(status(WELL, paused=True), status(WELL)) == [("Resumed", False)]


def test_ce_18_dead_letters_are_told_with_the_top_error_when_there_are_more() -> None:
    error = TopError(error_class="event", code="X", text="no such topic", count=2)
    two = status(seen(pod(report=report(dead=2, errors=[error])), deployment=deployment()))
    (notice,) = decide_notices(status(WELL), two, 1, 1, None)
    assert (notice.reason, notice.warning) == (Reason.DEAD_LETTERS, True)
    assert notice.message == "2 events are dead, most for: no such topic"
    assert told(two, two) == []
    assert told(two, status(WELL)) == []


def test_scaling_is_told_with_its_reason() -> None:
    scale = Scale(3, Reason.SCALING, "the oldest event waits for 60 s", Memory())
    (notice,) = decide_notices(status(WELL), status(WELL), 1, 3, scale)
    text = "from 1 to 3 pods: the oldest event waits for 60 s"
    assert notice == Notice("Scaled", text, always=True)


def test_what_comes_back_again_and_again_is_told_once_in_a_while() -> None:
    notice = Notice("StoreUnreachable", "away", warning=True)
    first, memory = damped([notice], {}, NOW)
    second, memory = damped([notice], memory, NOW + timedelta(seconds=10))
    third, memory = damped([notice], memory, NOW + QUIET)
    assert (first, second, third) == ([notice], [], [notice])


def test_every_scaling_is_told() -> None:
    notice = Notice("Scaled", "from 1 to 2 pods", always=True)
    _, memory = damped([notice], {}, NOW)
    assert damped([notice], memory, NOW)[0] == [notice]
