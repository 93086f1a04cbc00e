"""Destinations: a sick one makes nobody else wait, and whose fault a timeout is."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from conformance.publisher_contract import make_claim
from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_relay.publishers.destinations import (
    BRIEF_TRIAL_SECONDS,
    TRIAL_EVENTS,
    Destinations,
)

ACKED = Acked("t[0]@1")
TIMEOUT = Refused(Error.of(ErrorClass.OUTAGE, "NO_REPORT", "no acknowledgement within 3s"))
SICK = Refused(Error.of(ErrorClass.DESTINATION, "NOT_ENOUGH_REPLICAS", "too few"))
UNKNOWN = Refused(Error.of(ErrorClass.TRANSIENT, "UNKNOWN_TOPIC", "no such topic"))
TOO_LARGE = Refused(Error.of(ErrorClass.EVENT, "TOO_LARGE", "too large"))


class Cluster:
    """Topics are event types; each answers as told."""

    def __init__(self, **options: Any) -> None:
        self.now = 1000.0
        self.takes = 0.0
        self.answers: dict[str, Outcome] = {}
        self.calls: list[tuple[list[str], float | None]] = []
        self.destinations = Destinations(self.topic, self.send, 30.0, lambda: self.now, **options)

    def topic(self, claim: Claim) -> str | None:
        return None if claim.event_type == "nowhere" else claim.event_type

    def send(self, batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        self.calls.append(([c.event_type for c in batch], patience))
        self.now += self.takes
        found = [self.answers.get(c.event_type, ACKED) for c in batch]
        if any(answer is None for answer in found):
            raise RuntimeError("a defect")
        return found

    def publish(self, *topics: str) -> list[Outcome]:
        return list(self.destinations.publish([make_claim(event_type=t) for t in topics]))

    def parked(self) -> list[str]:
        return [p.name for p in self.destinations.parked()]


def kinds(outcomes: Sequence[Outcome]) -> list[object]:
    return [o.error.kind if isinstance(o, Refused) else type(o) for o in outcomes]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def with_sick(cluster: Cluster) -> Cluster:
    cluster.answers["sick"] = TIMEOUT
    cluster.publish("sick", "well")
    assert cluster.parked() == ["sick"]
    cluster.calls.clear()
    return cluster


def test_while_all_are_well_a_batch_is_sent_as_it_is(cluster: Cluster) -> None:
    assert kinds(cluster.publish("a", "b")) == [Acked, Acked]
    assert cluster.calls == [(["a", "b"], None)]


def test_a_timeout_while_others_were_acknowledged_is_the_destinations(cluster: Cluster) -> None:
    cluster.answers["sick"] = TIMEOUT
    outcomes = cluster.publish("well", "sick", "sick")
    assert kinds(outcomes) == [Acked, ErrorClass.DESTINATION, ErrorClass.DESTINATION]
    assert cluster.parked() == ["sick"]


def test_a_timeout_of_everybody_is_left_to_the_probe(cluster: Cluster) -> None:
    cluster.answers |= {"a": TIMEOUT, "b": TIMEOUT}
    batch = [make_claim(event_type=t) for t in ("a", "b", "nowhere")]
    cluster.answers["nowhere"] = TOO_LARGE
    outcomes = cluster.destinations.publish(batch)
    assert kinds(outcomes) == [ErrorClass.OUTAGE, ErrorClass.OUTAGE, ErrorClass.EVENT]
    assert cluster.parked() == []
    outcomes = cluster.destinations.blame(batch, outcomes)
    assert kinds(outcomes) == [
        ErrorClass.DESTINATION,
        ErrorClass.DESTINATION,
        ErrorClass.EVENT,
    ]
    assert cluster.parked() == ["a", "b"]


def test_who_took_a_part_is_not_parked(cluster: Cluster) -> None:
    """One partition of several: the others of its topic go on."""
    cluster.destinations._send = lambda batch, patience: [ACKED, TIMEOUT, ACKED]
    assert kinds(cluster.publish("half", "half", "well")) == [Acked, ErrorClass.OUTAGE, Acked]
    assert cluster.parked() == []


def test_what_the_broker_says_of_a_destination_needs_no_other_witness(cluster: Cluster) -> None:
    cluster.answers["sick"] = SICK
    assert kinds(cluster.publish("sick")) == [ErrorClass.DESTINATION]
    assert cluster.parked() == ["sick"]


def test_a_destination_is_parked_for_as_long_as_it_asked(cluster: Cluster) -> None:
    cluster.answers["sick"] = SICK._replace(after=40.0)
    (refused,) = cluster.publish("sick")
    assert refused == SICK._replace(after=40.0)
    cluster.now += 10.0
    assert cluster.publish("sick") == [Unsent("its destination takes nothing now", 30.0)]


def test_the_longest_patience_that_a_destination_asks_for_counts(cluster: Cluster) -> None:
    answers: list[Outcome] = [TIMEOUT, TIMEOUT._replace(after=40.0), TIMEOUT, ACKED]
    cluster.destinations._send = lambda batch, patience: answers
    outcomes = cluster.publish("sick", "sick", "sick", "well")
    assert kinds(outcomes[:3]) == [ErrorClass.DESTINATION] * 3
    assert [o.after for o in outcomes[:3] if isinstance(o, Refused)] == [0.0, 40.0, 0.0]
    cluster.now += 10.0
    assert cluster.publish("sick")[0] == Unsent("its destination takes nothing now", 30.0)


@pytest.mark.parametrize("answer", [UNKNOWN, TOO_LARGE])
def test_what_is_refused_is_not_parked(cluster: Cluster, answer: Refused) -> None:
    cluster.answers["refusing"] = answer
    cluster.publish("refusing", "well")
    assert cluster.parked() == []


def test_what_is_parked_is_answered_at_once_and_the_rest_is_sent(with_sick: Cluster) -> None:
    outcomes = with_sick.publish("sick", "well", "sick", "nowhere")
    assert kinds(outcomes) == [Unsent, Acked, Unsent, Acked]
    assert outcomes[0] == Unsent("its destination takes nothing now", 0.5)
    assert with_sick.calls == [(["well", "nowhere"], None)]


def test_where_all_are_parked_nothing_is_sent(with_sick: Cluster) -> None:
    assert kinds(with_sick.publish("sick", "sick")) == [Unsent, Unsent]
    assert with_sick.calls == []


def test_after_the_pause_a_few_go_apart_from_the_others_and_after_them(with_sick: Cluster) -> None:
    with_sick.now += 0.5
    outcomes = with_sick.publish(*["sick"] * (TRIAL_EVENTS + 2), "well")
    assert with_sick.calls == [(["well"], None), (["sick"] * TRIAL_EVENTS, 2.0)]
    assert kinds(outcomes) == [*[ErrorClass.DESTINATION] * TRIAL_EVENTS, Unsent, Unsent, Acked]
    (again,) = with_sick.publish("sick")
    assert isinstance(again, Unsent)
    assert again.after == 1.0


@pytest.mark.parametrize(("takes", "patience"), [(29.0, [None, 1.0]), (30.0, [None])])
def test_a_call_with_a_trial_in_it_takes_no_longer_than_any_other(
    with_sick: Cluster, takes: float, patience: list[float | None]
) -> None:
    with_sick.now += 0.5
    with_sick.takes = takes
    outcomes = with_sick.publish("sick", "well")
    assert [p for _, p in with_sick.calls] == patience
    assert isinstance(outcomes[0], Unsent) == (len(patience) == 1)
    with_sick.now += 1.0
    with_sick.takes = 0.0
    with_sick.publish("sick")
    assert with_sick.calls[-1] == (["sick"], 2.0)  # it was no trial, or one that is over


@pytest.mark.parametrize("answer", [ACKED, UNKNOWN])
def test_an_answer_ends_it(with_sick: Cluster, answer: Outcome) -> None:
    with_sick.answers["sick"] = answer
    with_sick.now += 0.5
    with_sick.publish("sick")
    assert with_sick.parked() == []
    with_sick.publish("sick", "well")
    assert with_sick.calls[-1] == (["sick", "well"], None)


def test_a_trial_alone_that_times_out_is_judged_by_the_probe(with_sick: Cluster) -> None:
    with_sick.now += 0.5
    batch = [make_claim(event_type="sick")]
    outcomes = with_sick.destinations.publish(batch)
    assert kinds(outcomes) == [ErrorClass.OUTAGE]
    assert kinds(with_sick.publish("sick")) == [Unsent]
    with_sick.destinations.blame(batch, outcomes)
    (waits,) = with_sick.publish("sick")
    assert isinstance(waits, Unsent)
    assert waits.after == 1.0


def test_a_trial_that_ends_in_a_defect_is_made_again(with_sick: Cluster) -> None:
    with_sick.answers["sick"] = None  # type: ignore[assignment]
    with_sick.now += 0.5
    with pytest.raises(RuntimeError):
        with_sick.publish("sick")
    with_sick.answers["sick"] = ACKED
    with_sick.now += 0.5
    assert kinds(with_sick.publish("sick")) == [Acked]


def test_it_is_said_once_when_it_begins_and_once_when_it_ends(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster.answers["sick"] = TIMEOUT
    for _ in range(5):
        cluster.publish("sick", "well")
        cluster.now += 60
    cluster.answers["sick"] = ACKED
    for _ in range(2):
        cluster.publish("sick", "well")
    said = [(r.levelno, vars(r)["event"], vars(r)["destination"]) for r in caplog.records]
    assert said == [(logging.WARNING, "parked", "sick"), (logging.INFO, "unparked", "sick")]
    assert "no acknowledgement within 3s" in caplog.text


@pytest.fixture
def briefly() -> Cluster:
    """Two are silent, and trials are brief."""
    cluster = Cluster(brief_trials=True)
    cluster.answers |= {"silent": TIMEOUT, "mute": TIMEOUT}
    cluster.publish("silent", "mute", "well")
    cluster.calls.clear()
    return cluster


def try_them(cluster: Cluster, *topics: str) -> None:
    """A trial takes as long as it may, and nothing else takes any time."""

    def send(batch: Sequence[Claim], patience: float | None) -> Sequence[Outcome]:
        cluster.now += patience or 0.0
        return [cluster.answers.get(c.event_type, ACKED) for c in batch]

    cluster.destinations._send = send
    cluster.publish(*topics)


def pause_of(cluster: Cluster, topic: str) -> float:
    (outcome,) = cluster.publish(topic)
    assert isinstance(outcome, Unsent)
    return outcome.after


def test_a_brief_trial_makes_a_long_pause(briefly: Cluster) -> None:
    briefly.now += 0.5
    try_them(briefly, "silent", "well")
    assert pause_of(briefly, "silent") == pytest.approx(19 * BRIEF_TRIAL_SECONDS, abs=1)


def test_those_who_are_tried_side_by_side_share_what_it_costs(briefly: Cluster) -> None:
    briefly.now += 0.5
    try_them(briefly, "silent", "mute", "well")
    assert pause_of(briefly, "mute") == pytest.approx(19 * BRIEF_TRIAL_SECONDS, abs=1)


def test_those_who_are_tried_one_after_another_pause_for_both(briefly: Cluster) -> None:
    briefly.now += 0.5
    try_them(briefly, "silent", "well")
    try_them(briefly, "mute", "well")
    assert pause_of(briefly, "mute") == pytest.approx(2 * 19 * BRIEF_TRIAL_SECONDS, abs=1)


@pytest.mark.parametrize(
    ("heard", "is_parked"),
    [(ACKED, False), (UNKNOWN, False), (TOO_LARGE, True), (SICK, True), (TIMEOUT, True)],
)
def test_an_answer_after_the_call_ends_it_too(
    with_sick: Cluster, heard: Outcome, is_parked: bool
) -> None:
    with_sick.destinations.heard(make_claim(event_type="sick"), heard)
    with_sick.destinations.heard(make_claim(event_type="nowhere"), ACKED)
    assert with_sick.parked() == (["sick"] if is_parked else [])


def test_patience_that_is_asked_for_after_the_call_is_given(with_sick: Cluster) -> None:
    with_sick.destinations.heard(make_claim(event_type="sick"), SICK._replace(after=40.0))
    assert pause_of(with_sick, "sick") == 40.0


def test_what_is_an_answer_is_for_the_publisher_to_say() -> None:
    cluster = Cluster(is_answer=lambda error: error.code == "TOO_LARGE")
    cluster.answers["sick"] = SICK
    cluster.publish("sick")
    cluster.answers["sick"] = TOO_LARGE
    cluster.now += 0.5
    cluster.publish("sick")
    assert cluster.parked() == []


def test_a_relapse_that_held_a_call_makes_a_long_pause(briefly: Cluster) -> None:
    answer = briefly.answers.pop("silent")
    briefly.now += 0.5
    briefly.publish("silent", "well")  # it answers the trial
    briefly.answers["silent"] = answer
    briefly.takes = 3.0
    briefly.publish("silent", "well")
    assert pause_of(briefly, "silent") == pytest.approx(57)
