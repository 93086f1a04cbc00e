"""The health checks for Argo CD: the chart, the docs and the tests have the same."""

import re

import yaml

from fixtures.chart import RELEASE, ROOT, nested, of_kind, only, render
from fixtures.gitops import argocd_health, script

KEYS = {
    f"resource.customizations.health.outbox.dev_{kind}": script(kind)
    for kind in ("OutboxRelay", "OutboxReplay")
}
"""As argocd-cm has them."""


def test_the_chart_makes_what_is_copied_into_argocd_cm() -> None:
    found = only(render(nested("argocd.healthChecks.enabled", True)), "ConfigMap")
    assert found["metadata"]["name"] == f"{RELEASE}-argocd"
    assert found["data"] == KEYS


def test_by_default_there_is_none() -> None:
    assert of_kind(render(), "ConfigMap") == []


def test_the_docs_show_the_same() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    (block,) = re.findall(r"```yaml\n(# argocd-cm.*?)```", page, re.S)
    assert yaml.safe_load(block)["data"] == KEYS


def test_a_relay_that_nobody_has_seen_is_on_its_way() -> None:
    new = {"kind": "OutboxRelay", "metadata": {"name": "orders", "generation": 1}}
    for key, lua in KEYS.items():
        assert argocd_health(new, lua)[0] == "Progressing", key
