"""Two operators on one resource: they notice it, show it in the same words, and write no more."""

from pathlib import Path

import pytest

from fixtures.cluster import Kube, Namespace
from fixtures.operators import Operator, Resources, operating

FIRST, SECOND = "a-team/outbox", "b-team/outbox"
CHILDREN = 6
LOOKS = 10
"""Of each, in which nothing is written: with the usual settings that takes minutes."""
MOST = 3 * CHILDREN
"""Writes of children by both: each may take over once, and one more may be under way."""
MOST_STATUSES = 12
TAKES = 20.0


def statuses(operator: Operator) -> int:
    return len(operator.wrote("outboxrelays/orders/status"))


def children(operator: Operator) -> int:
    mine = [w for w in operator.writes() if "/orders-" in w.path]
    return len(mine)


@pytest.mark.timeout(180, func_only=True)
def test_two_operators_stop_each_other_and_show_it(
    server: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    resources = Resources(namespace)
    resources.relay(pod={"image": "relay:1"})
    with (
        operating(namespace, tmp_path / "first", FIRST, DRIVER_ROLE="one") as first,
        operating(namespace, tmp_path / "second", SECOND, DRIVER_ROLE="two") as second,
    ):
        told = resources.wait_reason("Degraded", "OtherOperator")["message"]
        assert f"{FIRST} and {SECOND}" in told
        assert "watch.namespaces" in told
        settle(resources, first, second)
        both = (first, second)
        before = sum(map(children, both)), sum(map(statuses, both))
        assert before[0] <= CHILDREN + MOST
        assert before[1] <= MOST_STATUSES
        look_often(resources, first, second)
        assert (sum(map(children, both)), sum(map(statuses, both))) == before
        assert resources.condition("Degraded")["message"] == told

        # One that is started again remembers nothing, and they find each other again.
        first.kill()
        with operating(namespace, tmp_path / "again", FIRST) as again:
            namespace.wait(lambda: "started" in again.log, TAKES, "it is back")
            settle(resources, second, again)
            both = (second, again)
            after = sum(map(children, both)), sum(map(statuses, both))
            look_often(resources, second, again)
            assert (sum(map(children, both)), sum(map(statuses, both))) == after
            assert children(again) <= MOST
            assert resources.condition("Degraded")["message"] == told


def settle(resources: Resources, *operators: Operator) -> None:
    """Until nobody has written while each looked three times."""
    last = [("", [0, 0])]

    def same() -> bool:
        version = resources.get()["metadata"]["resourceVersion"]
        looks = [o.looks() for o in operators]
        if last[0][0] != version:
            last[0] = version, looks
        return all(now - then >= 3 for now, then in zip(looks, last[0][1], strict=True))

    resources.namespace.wait(same, TAKES, "nobody writes")


def look_often(resources: Resources, *operators: Operator) -> None:
    before = [o.looks() for o in operators]
    resources.namespace.wait(
        lambda: all(o.looks() - b >= LOOKS for o, b in zip(operators, before, strict=True)),
        TAKES + LOOKS,
        "each has looked often",
    )
