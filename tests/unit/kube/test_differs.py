"""Drift: what of ours is no longer so; what others added, or had before, is theirs."""

from typing import Any

import pytest

from outbox_operator.kube.refusals import differs, would_use_foreign
from outbox_operator.shared.seen import Refusal


@pytest.mark.parametrize(
    ("wanted", "live", "expected"),
    [
        ({"a": 1}, {"a": 1}, False),
        ({"a": 1}, {"a": 2}, True),
        ({"a": 1}, {}, True),
        ({"a": 1}, {"a": 1, "added": 2}, False),
        ({"a": {"b": 1}}, {"a": {"b": 1, "default": 2}}, False),
        ({"a": {"b": 1}}, {"a": None}, True),
        ({"a": {}}, {}, False),
        ({"a": []}, {}, False),
        ({"a": [1, 2]}, {"a": [1, 2]}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, True),
        ({"a": [1]}, {"a": [1, 2]}, True),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "x", "v": 1, "d": 0}]}, False),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "o"}, {"name": "x", "v": 1}]}, False),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "x", "v": 2}]}, True),
        ({"a": [{"name": "x"}]}, {"a": []}, True),
        ({"a": [{"port": 1}]}, {"a": [{"port": 1, "protocol": "TCP"}]}, False),
        ({"a": False}, {}, True),
        ({"paused": False}, {}, False),
        ({"paused": False}, {"paused": True}, True),
    ],
)
def test_only_what_we_want_counts(wanted: Any, live: Any, expected: bool) -> None:
    assert differs(wanted, live) is expected


@pytest.mark.parametrize(
    ("kind", "refused", "taken", "expected"),
    [
        ("Deployment", "ConfigMap", True, True),
        ("Deployment", "ServiceAccount", True, True),
        ("CronJob", "ConfigMap", True, True),
        ("Job", "ConfigMap", True, True),
        ("Deployment", "ConfigMap", False, False),
        ("Deployment", "Service", True, False),
        ("Service", "ConfigMap", True, False),
    ],
)
def test_no_pod_reads_what_somebody_else_has_under_our_name(
    kind: str, refused: str, taken: bool, expected: bool
) -> None:
    refusal = Refusal(refused, "orders-relay", "it is not ours", taken=taken)
    assert would_use_foreign({"kind": kind}, [refusal]) is expected
    assert not would_use_foreign({"kind": kind}, [])
