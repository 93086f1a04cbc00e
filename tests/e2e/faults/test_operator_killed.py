"""The operator is killed after each of its writes: the next one finishes the work, and once."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dev.cluster.clusters import exports
from fixtures import mortal_operator
from fixtures.cluster import Kube, Namespace
from fixtures.installation import SYSTEM, Installation
from fixtures.shop import Shop

CHILDREN = {
    "ServiceAccount": "serviceaccounts/orders-relay",
    "NetworkPolicy": "networkpolicies/orders-relay",
    "PodDisruptionBudget": "poddisruptionbudgets/orders-relay",
    "ConfigMap": "configmaps/orders-relay",
    "Service": "services/orders-relay",
    "Deployment": "deployments/orders-relay",
    "CronJob": "cronjobs/orders-reaper",
}
ITSELF = "outboxrelays/orders"
"""Written for its finalizer."""


class Lives:
    """Of one operator after another in that namespace, and what they wrote."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def writes(self) -> Counter[str]:
        """But for status and Events: those are written as often as there is something new."""
        paths = re.findall(r"^/api\S*/namespaces/[^/\s]+/(\S+)$", plain_names(self.log), re.M)
        return Counter(p for p in paths if p != "events" and not p.endswith("/status"))


def plain_names(text: str) -> str:
    """Without what the content of a ConfigMap adds to its name."""
    return re.sub(r"-relay-[0-9a-f]{10}\b", "-relay", text)


@contextmanager
def running(environ: Mapping[str, str], log: Path) -> Iterator[Lives]:
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, mortal_operator.__file__],
            env={**os.environ, **environ},
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    lives = Lives(log)
    try:
        yield lives
        assert process.poll() is None, "it ended, but for its writes"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(lives.log[-10_000:])  # pytest shows it where the test failed


@pytest.fixture
def environ(kube: Kube, images: Mapping[str, str], namespace: Namespace) -> dict[str, str]:
    """As the chart sets it."""
    settings = {
        "RELAY_IMAGE": images["relay"],
        "IMAGE_PULL_POLICY": "IfNotPresent",
        "NAMESPACES": namespace.name,
        "IDENTITY": f"{SYSTEM}/outbox-operator",  # of the one whose place it takes
        "INTERVAL": "1s",
        "IDLE_INTERVAL": "2s",
        "PORT": "0",
    }
    prefixed = {f"OUTBOX_OPERATOR_{name}": value for name, value in settings.items()}
    return {**exports(kube.cluster, os.environ), **prefixed}


def plain(shop: Shop, kind: str, name: str) -> Any:
    """A child of the relay of that name, without what is another in each."""
    role = "reaper" if kind == "CronJob" else "relay"
    found = shop.child(kind, shop.config_map(name) if kind == "ConfigMap" else f"{name}-{role}")
    assert found is not None, (kind, name)
    found.pop("status", None)
    kept = ("name", "labels", "annotations", "generation")
    found["metadata"] = {k: v for k, v in found["metadata"].items() if k in kept}
    text = plain_names(json.dumps(found, sort_keys=True)).replace(name, "NAME")
    digests = r'("outbox.dev/(revision|applied)"): "\w+"'
    return json.loads(re.sub(digests, r'\1: ""', text))


def test_a_new_one_finishes_what_the_dead_one_began(
    shop: Shop, installed: Installation, environ: Mapping[str, str], tmp_path: Path
) -> None:
    spec = {"replicas": 2, "ordering": "Key", "deletionPolicy": "Delete"}
    shop.apply("bills", **spec)  # undisturbed
    shop.wait_settled(2, name="bills")
    with installed.stopped(), running(environ, tmp_path / "lives.log") as lives:
        shop.apply("orders", **spec)
        shop.wait_settled(2)
        made = lives.writes()
        # Each of them once; and the reaper, which rests when all pods are ready.
        assert made == Counter([*CHILDREN.values(), CHILDREN["CronJob"], ITSELF])
        for kind in CHILDREN:
            assert plain(shop, kind, "orders") == plain(shop, kind, "bills")
        assert len(shop.relay_pods()) == 2

        shop.delete()
        shop.wait_gone(90)
        ended = lives.writes() - made
    assert ended == Counter([CHILDREN["Deployment"], "jobs/orders-retire", ITSELF])
    assert shop.sql("SELECT action, relay FROM outbox.audit") == [
        f"retire|{shop.namespace.name}/orders"
    ]
    shop.wait_settled(2, name="bills")
