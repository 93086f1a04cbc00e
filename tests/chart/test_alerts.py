"""The alerts: about metrics that exist, each with words and a place to read on."""

import re

import pytest

from fixtures.chart import ROOT, SWITCHES_ON, Object, merged, nested, only, render
from outbox_core.observe.metrics import RelayMetrics
from outbox_operator.metrics import Metrics as OperatorMetrics

RULES: list[Object] = [
    rule
    for group in only(render(SWITCHES_ON), "PrometheusRule")["spec"]["groups"]
    for rule in group["rules"]
]


def metrics() -> set[str]:
    return {
        sample.name
        for registry in (OperatorMetrics().registry, RelayMetrics().registry)
        for family in registry.collect()
        for sample in family.samples
    } | {
        family.name
        for registry in (OperatorMetrics().registry, RelayMetrics().registry)
        for family in registry.collect()
    }


def name_of(rule: Object) -> str:
    return str(rule["alert"])


def test_ce_18_there_is_an_alert_for_each_of_these() -> None:
    assert {name_of(rule) for rule in RULES} == {
        "OutboxOperatorDown",
        "OutboxWatchNotSynced",
        "OutboxReconcileFails",
        "OutboxRelayDegraded",
        "OutboxRelayNotReady",
        "OutboxEventsAreLate",
        "OutboxDeadLetters",
        "OutboxBreakerOpen",
    }


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_an_alert_is_about_metrics_that_exist(rule: Object) -> None:
    named = set(re.findall(r"\b(outbox_\w+)", rule["expr"]))
    assert named <= metrics()
    assert named or "up{" in rule["expr"]


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_an_alert_says_what_it_means_and_where_to_read_on(rule: Object) -> None:
    said = rule["annotations"]
    assert said["summary"].endswith(".")
    assert said["description"].endswith(".")
    page, _, anchor = said["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.M)
    assert anchor in {heading.lower() for heading in headings}
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_operators_alerts_are_about_this_one() -> None:
    where = 'job="outbox-operator", namespace="outbox-system"'
    own = [rule for rule in RULES if "up{" in rule["expr"] or "outbox_operator_" in rule["expr"]]
    assert len(own) == 4
    assert all(where in rule["expr"] for rule in own)


def test_thresholds_and_runbooks_are_the_values() -> None:
    page = "https://wiki.example.com/outbox"
    values = merged(SWITCHES_ON, nested("metrics.rules", {"lagSeconds": 7, "runbooks": page}))
    whole = only(render(values), "PrometheusRule")["spec"]["groups"]
    rules = [rule for group in whole for rule in group["rules"]]
    assert "outbox_oldest_pending_seconds) > 7" in next(
        rule["expr"] for rule in rules if name_of(rule) == "OutboxEventsAreLate"
    )
    assert all(rule["annotations"]["runbook_url"].startswith(f"{page}#") for rule in rules)


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor", "PrometheusRule"])
def test_prometheus_finds_them_by_their_labels(kind: str) -> None:
    release = {"labels": {"release": "prometheus"}}
    given = dict.fromkeys(("serviceMonitor", "podMonitor", "rules"), release)
    found = only(render(merged(SWITCHES_ON, {"metrics": given})), kind)
    assert found["metadata"]["labels"]["release"] == "prometheus"
