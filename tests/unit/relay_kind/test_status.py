"""The status: which conditions a situation ends in, and that each says what to do."""

from datetime import datetime
from typing import Any

import pytest

from fixtures.made_resources import KAFKA, outbox_relay
from fixtures.made_seen import NOW, deployment, pod, report, retiring, seen
from outbox_core.contract.reasons import TerminationMessage
from outbox_core.contract.report import TopError
from outbox_operator.relay.decide.checks import RECOVERED_AFTER, SET_UP_TIME
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay, RelayStatus
from outbox_operator.relay.status import (
    RENEWED_AFTER,
    STALE_AFTER,
    decide_invalid,
    decide_status,
)
from outbox_operator.shared.conditions import Condition
from outbox_operator.shared.seen import Pod, Refusal, Secret, Stopped, Waiting

WORDS = TerminationMessage(
    reason="WrongPassword", message="the password is not accepted; correct it"
)
NO_TOPIC = TopError(error_class="event", code="_UNKNOWN_TOPIC", text="no such topic", count=3)


def status(
    around: RelaySeen, relay: OutboxRelay | None = None, replicas: int = 1, **given: Any
) -> RelayStatus:
    return decide_status(relay or outbox_relay(), around, replicas, None, given.get("now", NOW))


def conditions(found: RelayStatus) -> dict[str, Condition]:
    return {c.type: c for c in found.conditions}


def after(before: RelayStatus, **spec: Any) -> OutboxRelay:
    return outbox_relay(**spec).model_copy(update={"status": before})


HEALTHY = seen(pod(report=report(rate=12.3)), deployment=deployment())


def test_all_is_well() -> None:
    found = status(HEALTHY)
    assert {t: c.status for t, c in conditions(found).items()} == {
        "Ready": "True",
        "Progressing": "False",
        "Degraded": "False",
        "BacklogHealthy": "True",
        "Paused": "False",
        "Reconciling": "False",
        "Stalled": "False",
    }
    assert found.pods == "1/1"
    assert found.replicas == found.ready_replicas == 1
    assert found.lag == "0s"
    assert found.relay_name == "shop/orders"
    assert found.observed_generation == 1
    assert found.throughput is not None
    assert found.throughput.published == 12


@pytest.mark.parametrize(
    ("around", "reason", "words"),
    [
        pytest.param(
            seen(secrets=[Secret("orders-db", None)]),
            "SecretMissing",
            "Secret orders-db in namespace shop",
            id="secret missing",
        ),
        pytest.param(
            seen(refusals=[Refusal("Service", "orders-relay", "it is not ours", taken=True)]),
            "NameTaken",
            "another name",
            id="name taken",
        ),
        pytest.param(
            seen(refusals=[Refusal("Deployment", "orders-relay", "spec is invalid")]),
            "PodsNotCreated",
            "spec is invalid",
            id="child refused",
        ),
        pytest.param(
            seen(
                deployment=deployment(
                    ready=0,
                    conditions=[
                        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q"}
                    ],
                )
            ),
            "PodsNotCreated",
            "exceeded quota",
            id="quota",
        ),
        pytest.param(
            seen(
                pod(ready=False, waiting=(Waiting("relay", "ImagePullBackOff", "not found"),)),
                deployment=deployment(ready=0),
            ),
            "ImageNotPulled",
            "spec.pod.image",
            id="image",
        ),
        pytest.param(
            seen(
                pod(
                    ready=False,
                    waiting=(
                        Waiting("relay", "CreateContainerConfigError", "couldn't find key dsn"),
                    ),
                ),
                deployment=deployment(ready=0),
            ),
            "SecretMalformed",
            "couldn't find key dsn",
            id="key missing",
        ),
        pytest.param(
            seen(pod(ready=False, unschedulable="0/3 nodes"), deployment=deployment(ready=0)),
            "PodsNotScheduled",
            "0/3 nodes",
            id="no node",
        ),
        pytest.param(
            seen(
                pod(ready=False, stopped=(Stopped("migrate", 1, WORDS, "Error"),)),
                deployment=deployment(ready=0),
            ),
            "WrongPassword",
            "correct it",
            id="migration says why",
        ),
        pytest.param(
            seen(
                pod(ready=False, stopped=(Stopped("migrate", 137, None, "OOMKilled"),)),
                deployment=deployment(ready=0),
            ),
            "MigrationFailed",
            "OOMKilled",
            id="migration killed",
        ),
        pytest.param(
            seen(
                pod(ready=False, stopped=(Stopped("relay", 139, None, "Error"),)),
                deployment=deployment(ready=0),
            ),
            "PodsCrashing",
            "kubectl logs --previous -n shop orders-relay-a",
            id="crash",
        ),
        pytest.param(
            seen(
                pod(
                    ready=False,
                    report=report(
                        troubles={"broker": "no broker answers"},
                        reasons={"broker": "BrokerUnreachable"},
                    ),
                ),
                deployment=deployment(ready=0),
            ),
            "BrokerUnreachable",
            "no broker answers",
            id="broker",
        ),
        pytest.param(
            seen(
                pod(ready=False, report=report(troubles={"store": "away"}, backlog=False)),
                deployment=deployment(ready=0),
            ),
            "StoreUnreachable",
            "PostgreSQL",
            id="store, of a relay that gives no reason",
        ),
    ],
)
def test_a_bad_situation_ends_in_conditions_with_the_cure(
    around: RelaySeen, reason: str, words: str
) -> None:
    found = conditions(status(around))
    for kind, expected in (("Ready", "False"), ("Degraded", "True")):
        assert (found[kind].status, found[kind].reason) == (expected, reason)
        assert words in found[kind].message


def test_a_relay_with_one_sick_pod_of_two_is_ready_and_degraded() -> None:
    sick = pod("orders-relay-b", ready=False, stopped=(Stopped("relay", 1, None, "Error"),))
    around = seen(pod(report=report()), sick, deployment=deployment(2, ready=1))
    found = conditions(status(around, replicas=2))
    assert found["Ready"].status == "True"
    assert "1 of 2" in found["Ready"].message
    assert found["Degraded"].status == "True"


def test_a_pod_that_is_ready_and_stumbles_does_not_make_it_flap() -> None:
    around = seen(pod(report=report(troubles={"store": "away"})), deployment=deployment())
    assert conditions(status(around))["Degraded"].status == "False"


def test_without_pods_nothing_is_published() -> None:
    found = conditions(status(seen(deployment=deployment(0)), replicas=0))
    assert (found["Ready"].status, found["Ready"].reason) == ("False", "ScaledToZero")


def test_a_pause_shows() -> None:
    found = conditions(status(HEALTHY, outbox_relay(paused=True)))
    assert found["Paused"].status == "True"
    assert "spec.paused" in found["Paused"].message
    assert found["Ready"].status == "True"


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (seen(deployment=deployment(2, ready=1)), "Scaling"),
        (seen(deployment=deployment(2, updated=1)), "RollingOut"),
        (seen(pod(ready=False, migrating=True), deployment=deployment(2, ready=1)), "Migrating"),
        (seen(pod(ready=False), deployment=deployment(2, ready=1)), "Scaling"),
        (seen(), "RollingOut"),
    ],
)
def test_what_is_on_its_way_is_progressing(around: RelaySeen, reason: str) -> None:
    found = conditions(status(around, replicas=2))["Progressing"]
    assert (found.status, found.reason) == ("True", reason)


def test_old_events_make_the_backlog_unhealthy() -> None:
    around = seen(pod(report=report(pending=10, lag=100)), deployment=deployment())
    found = conditions(status(around))["BacklogHealthy"]
    assert (found.status, found.reason) == ("False", "LagTooHigh")
    assert "10 " in found.message


def test_a_lag_around_the_limit_does_not_flap() -> None:
    high = status(seen(pod(report=report(pending=1, lag=61)), deployment=deployment()))
    around = seen(pod(report=report(pending=1, lag=50)), deployment=deployment())
    assert conditions(status(around))["BacklogHealthy"].status == "True"
    assert conditions(status(around, after(high)))["BacklogHealthy"].status == "False"


def test_ce_18_dead_letters_are_shown_with_their_cause() -> None:
    around = seen(pod(report=report(dead=3, errors=[NO_TOPIC])), deployment=deployment())
    found = status(around)
    condition = conditions(found)["BacklogHealthy"]
    assert (condition.status, condition.reason) == ("False", "DeadLetters")
    assert "3" in condition.message
    assert "no such topic" in condition.message
    assert "OutboxReplay" in condition.message
    assert found.top_errors == (NO_TOPIC,)


def test_nothing_is_known_of_the_backlog_before_the_first_report() -> None:
    found = conditions(status(seen(deployment=deployment(ready=0))))["BacklogHealthy"]
    assert (found.status, found.reason) == ("Unknown", "NoReport")


def test_what_is_no_longer_reported_is_kept_and_marked_as_old() -> None:
    around = seen(pod(report=report(pending=7, errors=[NO_TOPIC])), deployment=deployment())
    before = status(around)
    found = status(seen(deployment=deployment(ready=0)), after(before))
    assert found.backlog is not None
    assert found.backlog.pending == 7
    assert found.top_errors == (NO_TOPIC,)
    assert found.throughput is None
    condition = conditions(found)["BacklogHealthy"]
    assert (condition.status, condition.reason) == ("Unknown", "ReportStale")
    assert "2026-03-01 12:00:00" in condition.message


def test_a_condition_keeps_its_time_while_it_stays() -> None:
    before = status(HEALTHY)
    later = NOW + RENEWED_AFTER / 2
    stored = RelayStatus.model_validate_json(before.model_dump_json(by_alias=True))
    again = decide_status(after(stored), HEALTHY, 1, None, later)
    assert again == stored  # so nothing is written
    broken = decide_status(after(before), seen(deployment=deployment(ready=0)), 1, None, later)
    assert conditions(broken)["Ready"].last_transition_time == later
    assert conditions(broken)["Paused"].last_transition_time == NOW


def test_a_report_that_is_missed_changes_nothing() -> None:
    around = seen(pod(report=report(pending=7, rate=5, errors=[NO_TOPIC])), deployment=deployment())
    before = status(around)
    without_backlog = pod(report=report(backlog=False, troubles={"status": "too slow"}))
    for silent in (pod(), without_backlog):
        missed = seen(silent, deployment=deployment())
        assert status(missed, after(before), now=NOW + STALE_AFTER / 2) == before


def test_ready_pods_that_stay_silent_make_the_figures_old() -> None:
    before = status(HEALTHY)
    found = status(seen(pod(), deployment=deployment()), after(before), now=NOW + STALE_AFTER)
    condition = conditions(found)["BacklogHealthy"]
    assert (condition.status, condition.reason) == ("Unknown", "ReportStale")
    assert found.throughput is None


def test_an_idle_relay_rarely_renews_the_time_of_its_figures() -> None:
    relay = after(status(HEALTHY))
    assert status(HEALTHY, relay, now=NOW + RENEWED_AFTER / 2).observed_at == NOW
    assert status(HEALTHY, relay, now=NOW + RENEWED_AFTER).observed_at == NOW + RENEWED_AFTER


def test_figures_that_changed_are_of_now() -> None:
    around = seen(pod(report=report(pending=7)), deployment=deployment())
    found = status(around, after(status(HEALTHY)), now=NOW + RENEWED_AFTER / 2)
    assert found.observed_at == NOW + RENEWED_AFTER / 2


def test_rates_that_differ_in_the_last_digit_are_not_written() -> None:
    one, other = (
        status(seen(pod(report=report(rate=rate)), deployment=deployment()))
        for rate in (1234.5, 1239.1)
    )
    assert one == other


def test_backlogs_are_not_added_up_but_rates_are() -> None:
    pods = [pod(f"p{i}", report=report(pending=5, rate=10)) for i in range(3)]
    found = status(seen(*pods, deployment=deployment(3)), replicas=3)
    assert found.backlog is not None
    assert found.backlog.pending == 5
    assert found.throughput is not None
    assert found.throughput.published == 30


def test_a_relay_that_could_not_be_retired_shows_how_to_continue() -> None:
    job = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    around = seen(deployment=deployment(0), children={("Job", "orders-retire"): job})
    found = conditions(status(around, retiring(), 0))
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", "RetirementFailed")
    assert "Retain" in found["Degraded"].message
    assert found["Ready"].reason == "Deleting"


def test_an_unusable_spec_is_shown_and_other_conditions_stay() -> None:
    before = status(HEALTHY)
    found = decide_invalid(before, 7, "lease: too short", NOW)
    told = conditions(found)
    assert (told["Ready"].status, told["Ready"].reason) == ("False", "SpecInvalid")
    assert "lease: too short" in told["Degraded"].message
    assert told["BacklogHealthy"].status == "True"
    assert found.observed_generation == 7


def test_a_relay_that_cannot_be_retired_shows_how_to_delete_it() -> None:
    around = seen(deployment=deployment(0), secrets=[Secret("orders-db", None)])
    degraded = conditions(status(around, retiring(), replicas=0))["Degraded"]
    assert (degraded.status, degraded.reason) == ("True", "SecretMissing")
    assert "spec.deletionPolicy to Retain" in degraded.message


def test_a_job_that_cannot_retire_a_relay_shows_why() -> None:
    failed = pod("orders-retire-a", ready=False, stopped=(Stopped("retire", 1, WORDS, "Error"),))
    around = seen(deployment=deployment(0), retiring=[failed])
    degraded = conditions(status(around, retiring(), replicas=0))["Degraded"]
    assert (degraded.status, degraded.reason) == ("True", "WrongPassword")
    assert "spec.deletionPolicy to Retain" in degraded.message


def test_a_secret_that_was_just_made_is_not_malformed() -> None:
    late = Waiting("migrate", "CreateContainerConfigError", 'secret "orders-db" not found')
    around = seen(pod(ready=False, waiting=(late,)), deployment=deployment(ready=0))
    assert conditions(status(around))["Degraded"].status == "False"
    strange = Waiting("migrate", "CreateContainerConfigError", 'secret "of-env" not found')
    around = seen(pod(ready=False, waiting=(strange,)), deployment=deployment(ready=0))
    assert conditions(status(around))["Degraded"].reason == "SecretMalformed"


def test_a_pod_that_cannot_be_set_up_names_the_keys_that_must_be_there() -> None:
    tls = {"caSecretRef": {"name": "kafka-ca", "key": "ca.crt"}}
    relay = outbox_relay(publisher={"kafka": {**KAFKA, "tls": tls}})
    around = seen(pod(ready=False, held_since=NOW), deployment=deployment(ready=0))
    assert (
        conditions(status(around, relay, now=NOW + SET_UP_TIME / 2))["Degraded"].status == "False"
    )
    found = conditions(status(around, relay, now=NOW + SET_UP_TIME))
    for kind, expected in (("Ready", "False"), ("Degraded", "True")):
        assert (found[kind].status, found[kind].reason) == (expected, "PodsNotSetUp")
        assert "ca.crt of Secret kafka-ca" in found[kind].message
        assert "kubectl describe pod -n shop orders-relay-a" in found[kind].message


def test_without_mounted_secrets_no_key_is_blamed() -> None:
    around = seen(pod(ready=False, held_since=NOW), deployment=deployment(ready=0))
    found = conditions(status(around, now=NOW + SET_UP_TIME))["Degraded"]
    assert found.reason == "PodsNotSetUp"
    assert "Secret" not in found.message


def test_a_pod_that_goes_need_not_be_set_up() -> None:
    around = seen(
        pod(ready=False, held_since=NOW, terminating=True), deployment=deployment(ready=0)
    )
    assert conditions(status(around, now=NOW + SET_UP_TIME))["Degraded"].status == "False"


def degraded(*pods: Pod, now: datetime = NOW) -> str:
    return conditions(status(seen(*pods, deployment=deployment()), now=now))["Degraded"].reason


def test_a_pod_that_crashes_again_and_again_does_not_flap() -> None:
    back = pod(report=report(), stopped=(Stopped("relay", 137, None, "OOMKilled", NOW),))
    assert degraded(back, now=NOW + RECOVERED_AFTER / 2) == "PodsCrashing"
    assert degraded(back, now=NOW + RECOVERED_AFTER) == "AsExpected"


def test_what_a_pod_reported_about_its_surroundings_is_over_when_it_is_ready() -> None:
    defect = TerminationMessage(reason="Defect", message="a fault")
    over, again = (
        pod(report=report(), stopped=(Stopped("relay", 1, words, "Error", NOW),))
        for words in (WORDS, defect)
    )
    assert degraded(over) == "AsExpected"
    assert degraded(again) == "Defect"


@pytest.mark.parametrize(
    ("code", "reason"), [(137, "AsExpected"), (143, "AsExpected"), (139, "PodsCrashing")]
)
def test_a_pod_that_was_asked_to_stop_does_not_crash(code: int, reason: str) -> None:
    stopped = (Stopped("relay", code, None, "Error"),)
    assert degraded(pod(ready=False, terminating=True, stopped=stopped)) == reason
    assert degraded(pod(ready=False, stopped=stopped)) == "PodsCrashing"


@pytest.mark.parametrize(
    ("pod_settings", "hint"), [({"image": "relay:old"}, "relay:old (spec.pod.image)"), ({}, None)]
)
def test_a_pinned_relay_that_does_not_know_a_setting_shows_what_to_do(
    pod_settings: dict[str, Any], hint: str | None
) -> None:
    text = "/etc/outbox/config/relay.yaml:; invention: Extra inputs are not permitted"
    words = TerminationMessage(reason="SettingsInvalid", message=text)
    relay = outbox_relay(pod=pod_settings)
    around = seen(pod(ready=False, stopped=(Stopped("relay", 1, words, "Error"),)))
    found = {c.type: c for c in decide_status(relay, around, 1, None, NOW).conditions}["Degraded"]
    assert (found.status, found.reason) == ("True", "SettingsInvalid")
    assert found.message.startswith(text)
    assert found.message == text if hint is None else hint in found.message


def test_a_reason_that_is_no_word_does_not_stop_the_report() -> None:
    words = TerminationMessage(reason="bad config", message="what another program says")
    assert degraded(pod(ready=False, stopped=(Stopped("relay", 1, words, "Error"),))) == (
        "Unrecognised"
    )
