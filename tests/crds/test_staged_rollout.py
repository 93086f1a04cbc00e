"""A new operator with another default image: relays change one after another, edits at once."""

import itertools
from pathlib import Path

from fixtures.cluster import Kube, Namespace
from fixtures.operators import Resources, operating

NAMES = ("one", "two", "three", "four", "five")
DELAY = 3.0


def image(resources: Resources, name: str) -> str:
    template = resources.wait_child(name=f"{name}-relay")["spec"]["template"]
    return str(template["spec"]["containers"][0]["image"])


def of_image(resources: Resources, wanted: str) -> set[str]:
    return {name for name in NAMES if image(resources, name) == wanted}


def test_an_upgrade_changes_relay_after_relay(
    server: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    resources = Resources(namespace)
    for name in NAMES:
        resources.relay(name)
    with operating(namespace, tmp_path / "old", RELAY_IMAGE="relay:1", ROLLOUT_DELAY="1h"):
        for name in NAMES:  # new ones never wait
            resources.wait_reason("Ready", "ScaledToZero", name)
            resources.wait_reason("Progressing", "AsExpected", name)  # it was rolled out
            assert image(resources, name) == "relay:1"

    new = {"RELAY_IMAGE": "relay:2", "ROLLOUT_DELAY": f"{DELAY:g}s"}
    with operating(namespace, tmp_path / "new", **new):
        namespace.wait(lambda: of_image(resources, "relay:2"), 30, "the first has changed")
        (waits, *_) = sorted(of_image(resources, "relay:1"))
        told = resources.wait_reason("Progressing", "RolloutWaiting", waits)
        assert told["status"] == "True"
        assert "operator.rolloutDelay" in told["message"]
        resources.patch({"spec": {"batchSize": 7}}, waits)
        namespace.wait(lambda: image(resources, waits) == "relay:2", 2, "an edit never waits")

    # The next one goes on where this one ended.
    left = of_image(resources, "relay:1")
    assert left
    with operating(namespace, tmp_path / "again", **new) as operator:
        namespace.wait(lambda: not of_image(resources, "relay:1"), 30, "all have changed")
        at = sorted(operator.wrote("deployments/"))
    assert len(at) == len(left)
    assert all(b - a >= DELAY - 0.5 for a, b in itertools.pairwise(at))


def test_repairs_do_not_wait(server: Kube, namespace: Namespace, tmp_path: Path) -> None:
    resources, names = Resources(namespace), ("one", "two")
    with operating(namespace, tmp_path / "old", RELAY_IMAGE="relay:1"):
        for name in names:
            resources.relay(name)
        for name in names:
            resources.wait_reason("Progressing", "AsExpected", name)

    def waiting() -> list[str]:
        found = {n: resources.condition("Progressing", n).get("reason") for n in names}
        return [n for n in names if found[n] == "RolloutWaiting"]

    new = {"RELAY_IMAGE": "relay:2", "ROLLOUT_DELAY": "1h"}
    with operating(namespace, tmp_path / "new", **new):
        namespace.wait(waiting, 30, "one of them waits")
        (name,) = waiting()
        namespace.kube.apps.patch_namespaced_deployment(
            f"{name}-relay",
            namespace.name,
            [
                {"op": "remove", "path": "/metadata/ownerReferences"},
                {"op": "add", "path": "/spec/paused", "value": True},
            ],
        )

        def is_repaired() -> bool:
            live = resources.wait_child(name=f"{name}-relay")
            owned = bool(live["metadata"].get("ownerReferences"))
            return owned and not live["spec"].get("paused")

        namespace.wait(is_repaired, 20, "it is owned again, and not paused")
