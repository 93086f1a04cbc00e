"""What the report of a failed test shows of its namespaces."""

from types import SimpleNamespace
from typing import Any

from kubernetes.client.exceptions import ApiException

from fixtures.dump import dump


def status(name: str, restarts: int = 0, **state: str) -> Any:
    return SimpleNamespace(
        name=name, restart_count=restarts, state=SimpleNamespace(to_dict=lambda: state)
    )


def pod(name: str, *containers: Any, inits: tuple[Any, ...] = ()) -> Any:
    return SimpleNamespace(
        metadata=SimpleNamespace(name=name),
        status=SimpleNamespace(
            phase="Pending",
            container_statuses=list(containers) or None,
            init_container_statuses=list(inits) or None,
        ),
    )


def read(pod: str, container: str, previous: bool) -> str:
    if container == "waits":
        raise ApiException(status=400, reason="Bad Request")
    return f"{container} of {pod}{', earlier' if previous else ''}"


def test_an_event_tells_of_whom_and_why() -> None:
    on = SimpleNamespace(kind="Pod", name="relay-1")
    event = SimpleNamespace(involved_object=on, reason="Failed", message="no such image")
    assert dump([event], [], read) == "event Pod/relay-1: Failed: no such image"


def test_init_containers_and_lives_before_a_restart_are_shown() -> None:
    told = dump(
        [], [pod("relay-1", status("relay", 1), inits=(status("migrate", waiting="x"),))], read
    )
    assert told.strip().splitlines() == [
        "pod relay-1: Pending {'migrate': {'waiting': 'x'}, 'relay': {}}",
        "--- log of relay-1/migrate",
        "migrate of relay-1",
        "--- log of relay-1/relay before its restart",
        "relay of relay-1, earlier",
        "--- log of relay-1/relay",
        "relay of relay-1",
    ]


def test_a_log_that_cannot_be_read_and_a_pod_without_containers_hide_nothing_else() -> None:
    told = dump([], [pod("new"), pod("old", status("waits"))], read).splitlines()
    assert "pod new: Pending {}" in told
    assert told[-1] == "--- log of old/waits: Bad Request"


def test_an_empty_namespace_is_told_as_such() -> None:
    assert dump([], [], read) == "nothing"
