"""What is gathered of a relay: a pod of which only the object is left works no more."""

import asyncio
from typing import Any

from aiohttp import web

from fixtures.answering import answering
from fixtures.made_resources import outbox_relay
from fixtures.made_seen import NOW, retiring
from outbox_operator.kube.kinds import PODS
from outbox_operator.kube.reports import Reporters
from outbox_operator.kube.secrets import Secrets
from outbox_operator.kube.watch.informer import Informers
from outbox_operator.kube.watch.watches import Watches
from outbox_operator.relay.decide.checks import first_finding
from outbox_operator.relay.decide.deletion import deletion_finding, is_drained
from outbox_operator.relay.gather import RelayGatherer
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.shared.names import OWNER


def pod(name: str, component: str, config: str = "", **status: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "shop",
        "resourceVersion": "1",
        "labels": {"app.kubernetes.io/component": component},
        "annotations": {OWNER: "orders"},
    }
    volumes = [{"name": "tmp", "emptyDir": {}}]
    if config:
        volumes.append({"name": "config", "configMap": {"name": config}})
    return {"metadata": metadata, "spec": {"volumes": volumes}, "status": status}


def ended(name: str, component: str, phase: str, message: str = "") -> dict[str, Any]:
    state = {"terminated": {"exitCode": 137, "reason": "Error", "message": message}}
    container = {"name": component, "ready": False, "state": state}
    return pod(name, component, phase=phase, reason="Evicted", containerStatuses=[container])


def gathered(*pods: dict[str, Any]) -> RelaySeen:
    async def server(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(5)
        if request.path == "/api/v1/pods":
            listed = {"apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": pods}
            return web.json_response(listed)
        return web.json_response({"metadata": {"uid": "1", "resourceVersion": "1"}})

    async def test() -> RelaySeen:
        async with answering(server) as api:
            informers = Informers(api, (PODS,), (), lambda _: None, Watches(lambda _: None))
            tasks = informers.start()
            try:
                await informers.synced(None)
                gatherer = RelayGatherer(api, informers, Reporters(), Secrets(api, 60))
                return gatherer.seen(outbox_relay(), await gatherer.ask(outbox_relay(), []))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(test())


def test_a_pod_that_was_evicted_is_no_relay_any_more() -> None:
    seen = gathered(
        ended("orders-relay-a", "relay", "Failed"),
        ended("orders-relay-b", "relay", "Succeeded"),
        pod("orders-relay-c", "relay", phase="Pending"),
    )
    assert [p.name for p in seen.pods] == ["orders-relay-c"]
    assert first_finding(outbox_relay(), seen, NOW) is None


def test_a_relay_whose_pods_have_all_ended_is_drained() -> None:
    going = retiring()
    assert is_drained(going, gathered(ended("orders-relay-a", "relay", "Failed")))
    assert not is_drained(going, gathered(pod("orders-relay-a", "relay", phase="Running")))


def test_the_termination_message_of_a_failed_retirement_is_read() -> None:
    said = '{"reason": "WrongPassword", "message": "correct the password"}'
    seen = gathered(ended("orders-retire-a", "retire", "Failed", said))
    found = deletion_finding(retiring(), seen, NOW)
    assert found is not None
    assert found.reason == "WrongPassword"


def test_the_config_of_every_pod_that_may_start_again_is_known() -> None:
    around = gathered(
        pod("orders-relay-a", "relay", config="orders-relay-old", phase="Running"),
        pod("orders-relay-b", "relay", config="orders-relay-new", phase="Pending"),
        pod("orders-reaper-a", "reaper", config="orders-relay-older", phase="Running"),
        pod("orders-reaper-b", "reaper", config="orders-relay-done", phase="Succeeded"),
    )
    assert around.mounted == {"orders-relay-old", "orders-relay-new", "orders-relay-older"}
