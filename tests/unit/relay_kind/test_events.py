"""Events: told when something has changed, and not again and again."""

from datetime import timedelta

from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, deployment, pod, report, seen
from outbox_core.contract.report import TopError
from outbox_operator.relay.decide.autoscaling import Scale, ScaleMemory
from outbox_operator.relay.events import Announced, decide_notices
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import RelayStatus
from outbox_operator.relay.status import decide_status
from outbox_operator.shared.notices import QUIET_TIME, Notice, damped
from outbox_operator.shared.reasons import Reason
from outbox_operator.shared.seen import Secret

WELL = seen(pod(report=report()), deployment=deployment())
NO_SECRET = seen(secrets=[Secret("orders-db", None)], deployment=deployment(ready=0))
NO_NODE = seen(pod(ready=False, unschedulable="0/3 nodes"), deployment=deployment(ready=0))
SECOND = timedelta(seconds=1)


def status(around: RelaySeen, *, paused: bool = False) -> RelayStatus:
    return decide_status(outbox_relay(paused=paused), around, 1, None, NOW)


def dead(count: int) -> RelayStatus:
    return status(seen(pod(report=report(dead=count)), deployment=deployment()))


def told(before: RelayStatus, after: RelayStatus) -> list[tuple[str, bool]]:
    notices, _ = decide_notices(Announced.of(before), after, 1, 1, None, NOW)
    return [(n.reason, n.warning) for n in notices]


def heard(*looks: tuple[timedelta, RelayStatus]) -> list[str]:
    """All that is told of a relay that was well, one look after the other."""
    known = Announced.of(status(WELL))
    reasons: list[str] = []
    for after, found in looks:
        notices, known = decide_notices(known, found, 1, 1, None, NOW + after)
        reasons += [n.reason for n in notices]
    return reasons


def test_nothing_new_is_not_announced() -> None:
    assert told(status(WELL), status(WELL)) == []
    assert told(RelayStatus(), status(WELL)) == []


def test_a_problem_and_its_end_are_announced() -> None:
    assert told(status(WELL), status(NO_SECRET)) == [("SecretMissing", True)]
    assert told(status(NO_SECRET), status(NO_SECRET)) == []
    assert told(status(NO_SECRET), status(WELL)) == [("Recovered", False)]


def test_open_egress_is_announced_once_and_trouble_does_not_end_it() -> None:
    http = {"request": "Payload", "allowedHosts": ["*.example.com"]}
    relay = outbox_relay(publisher={"http": http})
    open_ = decide_status(relay, WELL, 1, None, NOW)
    assert told(status(WELL), open_) == [("EgressOpen", True)]
    assert told(open_, open_) == []  # also after a restart of the operator
    later = 2 * QUIET_TIME
    assert heard((SECOND, open_), (later, status(NO_SECRET)), (2 * later, open_)) == [
        "EgressOpen",
        "SecretMissing",
        "Recovered",
    ]
    looks = (SECOND, open_), (later, status(WELL)), (2 * later, open_)
    assert heard(*looks) == ["EgressOpen", "EgressOpen"]


def test_a_pause_and_its_end_are_announced() -> None:
    assert told(status(WELL), status(WELL, paused=True)) == [("Paused", False)]
    assert told(status(WELL, paused=True), status(WELL)) == [("Resumed", False)]


def test_every_pause_and_every_end_of_one_is_announced() -> None:
    paused = status(WELL, paused=True)
    looks = [(n * SECOND, (status(WELL), paused)[n % 2]) for n in range(1, 5)]
    assert heard(*looks) == ["Paused", "Resumed", "Paused", "Resumed"]


def test_ce_18_dead_letters_are_announced_with_the_top_error_when_there_are_more() -> None:
    error = TopError(error_class="event", code="X", text="no such topic", count=2)
    two = status(seen(pod(report=report(dead=2, errors=[error])), deployment=deployment()))
    (notice,), _ = decide_notices(Announced.of(status(WELL)), two, 1, 1, None, NOW)
    assert (notice.reason, notice.warning) == (Reason.DEAD_LETTERS, True)
    assert "2" in notice.message
    assert "no such topic" in notice.message
    assert told(two, two) == []
    assert told(two, status(WELL)) == []


def test_dead_letters_that_became_more_are_announced_when_it_was_quiet_for_long_enough() -> None:
    one, known = decide_notices(Announced.of(dead(0)), dead(1), 1, 1, None, NOW)
    for after in (1 * SECOND, QUIET_TIME - SECOND):
        more, known = decide_notices(known, dead(100_000), 1, 1, None, NOW + after)
        assert more == []
    (many,), known = decide_notices(known, dead(100_000), 1, 1, None, NOW + QUIET_TIME)
    assert "100000" in many.message
    assert [n.reason for n in one] == [Reason.DEAD_LETTERS]
    assert decide_notices(known, dead(100_000), 1, 1, None, NOW + 3 * QUIET_TIME)[0] == []


def test_dead_letters_after_all_were_replayed_are_announced_again() -> None:
    looks = ((timedelta(), dead(5)), (SECOND, dead(0)), (QUIET_TIME, dead(3)))
    assert heard(*looks) == ["DeadLetters", "DeadLetters"]


def test_a_recurring_problem_is_announced_once_in_a_while_and_its_end_at_last() -> None:
    looks = [(10 * n * SECOND, status((WELL, NO_SECRET)[n % 2])) for n in range(1, 20)]
    assert looks[-1][0] < QUIET_TIME
    assert heard(*looks) == ["SecretMissing", "Recovered"]


def test_what_was_left_out_is_announced_later_if_it_still_holds() -> None:
    looks = [
        (timedelta(), status(NO_SECRET)),
        (SECOND, status(WELL)),
        (2 * SECOND, status(NO_SECRET)),
    ]
    assert heard(*looks) == ["SecretMissing", "Recovered"]
    later = (QUIET_TIME, status(NO_SECRET))
    assert heard(*looks, later) == ["SecretMissing", "Recovered", "SecretMissing"]
    again = (QUIET_TIME + SECOND, status(WELL))
    assert heard(*looks, later, again)[-2:] == ["SecretMissing", "Recovered"]


def test_the_end_of_an_announced_problem_is_announced_even_after_another_problem() -> None:
    looks = (
        (timedelta(), status(NO_SECRET)),
        (SECOND, status(NO_NODE)),
        (QUIET_TIME, status(WELL)),
    )
    assert heard(*looks) == ["SecretMissing", "PodsNotScheduled", "Recovered"]


def test_scaling_is_announced_with_its_reason() -> None:
    scale = Scale(3, Reason.SCALING, "the oldest event waits for 60 s", ScaleMemory())
    (notice,), _ = decide_notices(Announced(), status(WELL), 1, 3, scale, NOW)
    text = "from 1 to 3 pods: the oldest event waits for 60 s"
    assert notice == Notice("Scaled", text, always=True)


def test_a_recurring_notice_of_a_replay_is_announced_once_in_a_while() -> None:
    notice = Notice("StoreUnreachable", "away", warning=True)
    first, memory = damped([notice], {}, NOW)
    second, memory = damped([notice], memory, NOW + timedelta(seconds=10))
    third, memory = damped([notice], memory, NOW + QUIET_TIME)
    assert (first, second, third) == ([notice], [], [notice])


def test_some_notices_of_a_replay_are_announced_every_time() -> None:
    notice = Notice("AttemptStarted", "attempt 2", always=True)
    _, memory = damped([notice], {}, NOW)
    assert damped([notice], memory, NOW)[0] == [notice]
