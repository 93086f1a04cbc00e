"""
Two hundred relays are created, edited and deleted at once while the operator is killed ten times:
all converge, nothing is left, and nothing is written in a loop.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster.clusters import exports
from fixtures.cluster import Kube, Namespace
from fixtures.made_resources import relay_body
from fixtures.operator_process import OperatorProcess, operating
from outbox_operator.kube.kinds import CHILDREN, CUSTOM, ObjectKind
from outbox_operator.kube.watch.informer import SELECTOR
from outbox_operator.shared.names import OWNER

RELAYS = CUSTOM["OutboxRelay"]
MANY = 200
HANDS = 8
KILLS_WHILE_MADE = 7
KILLS_WHILE_DELETED = 3
STEP = 150
"""Writes between two kills: all of it takes about 1,600."""
QUIET_SECONDS = 5.0
"""Several looks at each relay."""
CHILD_WRITES = 4
"""Of one child at most: made, changed by the edit, and once more where a life ended within either.
Most take one or two."""
STATUS_WRITES = 2 + KILLS_WHILE_MADE
"""Of one status at most: it follows what is seen, and each life may see another moment."""


class Crowd:
    def __init__(self, server: Kube, namespace: Namespace) -> None:
        self._request = server.dynamic.request
        self._core = server.core
        self._namespace = namespace.name

    def _path(self, n: int | None = None) -> str:
        return RELAYS.path(self._namespace, None if n is None else f"relay-{n}")

    @contextmanager
    def created_and_edited(self) -> Iterator[Future[list[None]]]:
        """Each of them edited as soon as it is there, several at the same time."""
        secret = {"metadata": {"name": "orders-db"}, "stringData": {"dsn": "unused"}}
        self._core.create_namespaced_secret(self._namespace, secret)
        with ThreadPoolExecutor(HANDS) as hands, ThreadPoolExecutor(1) as one:
            yield one.submit(lambda: list(hands.map(self._make, range(MANY))))

    def _make(self, n: int) -> None:
        seldom: dict[str, Any] = {
            "reaper": {"schedule": "0 0 1 1 *"},
            "networkPolicy": {"enabled": False},
        }
        body = relay_body(replicas=0, **seldom)
        self._request("post", self._path(), body=body | {"metadata": {"name": f"relay-{n}"}})
        edit, merge = {"spec": {"batchSize": 7}}, "application/merge-patch+json"
        self._request("patch", self._path(n), body=edit, content_type=merge)

    def delete(self) -> None:
        self._request("delete", self._path())

    def listed(self, kind: ObjectKind, selector: str = "") -> list[dict[str, Any]]:
        query = [("labelSelector", selector)] if selector else []
        path = kind.path(self._namespace)
        answer = self._request("get", path, query_params=query, serialize=False)
        found: list[dict[str, Any]] = json.loads(answer.data)["items"]
        return found

    def is_settled(self) -> bool:
        """All are there, and looked after as they were edited."""
        seen = [(r.get("status") or {}).get("observedGeneration") for r in self.listed(RELAYS)]
        return seen == [2] * MANY

    def children(self) -> dict[str, list[dict[str, Any]]]:
        kinds = [kind for kind in CHILDREN.values() if not kind.optional]
        return {kind.name: found for kind in kinds if (found := self.listed(kind, SELECTOR))}


def owner_of(child: dict[str, Any]) -> str:
    owner: str = child["metadata"]["annotations"][OWNER]
    return owner


def kill(operator: OperatorProcess, times: int, is_time: Callable[[], bool]) -> None:
    for _ in range(times):
        deadline = time.monotonic() + 30
        while not is_time():
            assert time.monotonic() < deadline, "it does not work"
            time.sleep(0.05)
        lives = len(operator.lives)
        operator.kill()
        while len(operator.lives) == lives:
            time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(180, func_only=True)
def test_all_converge_and_nothing_is_left_or_written_in_a_loop(
    server: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    crowd = Crowd(server, namespace)
    environ = exports(server.cluster, os.environ)
    with operating(tmp_path / "log", environ, NAMESPACES=namespace.name) as operator:

        def half_gone() -> bool:
            """Of what the last life has seen: of a half, of a quarter, of an eighth."""
            most = MANY >> (len(operator.lives) - KILLS_WHILE_MADE)
            return len(crowd.listed(CHILDREN["Deployment"], SELECTOR)) <= most

        def is_quiet() -> bool:
            before = operator.writes()
            time.sleep(QUIET_SECONDS)  # which is what is measured
            return operator.writes() == before

        # Made and edited.
        with crowd.created_and_edited() as making:

            def in_the_middle() -> bool:
                if making.done():
                    making.result()  # or its failure
                return operator.writes().total() >= STEP * max(1, len(operator.lives))

            kill(operator, KILLS_WHILE_MADE, in_the_middle)
            making.result()
        namespace.wait(crowd.is_settled, 60, "all of them settled")
        made = crowd.children()
        names = {f"relay-{n}" for n in range(MANY)}
        for kind, found in made.items():  # none is missing, none is there twice
            assert kind == "ConfigMap" or sorted(map(owner_of, found)) == sorted(names), kind
        edited = [
            c
            for c in made["ConfigMap"]
            if yaml.safe_load(c["data"]["relay.yaml"])["batchSize"] == 7
        ]
        assert {owner_of(found) for found in edited} == names

        # Nothing was written more often than it had to be, and nothing is any more.
        namespace.wait(is_quiet, 60, "nothing is written when nothing happens")
        written = operator.writes()
        for path, times in written.items():
            most = STATUS_WRITES if path.endswith("/status") else CHILD_WRITES
            assert times <= most or path == "events", (path, times)

        # Deleted.
        crowd.delete()
        kill(operator, KILLS_WHILE_DELETED, half_gone)
        namespace.wait(
            lambda: not crowd.listed(RELAYS) and not crowd.children(), 60, "nothing left"
        )
        assert namespace.wait(is_quiet, 60, "nothing is written for those that are gone")
        made_again = operator.writes() - written
        assert not made_again, "children of relays that were deleted"
        assert len(operator.lives) == 1 + KILLS_WHILE_MADE + KILLS_WHILE_DELETED
