"""What comes back with every attempt is logged once in a while: by Kopf, too."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from fixtures.answering import answering
from outbox_operator.kube.kinds import CUSTOM, CUSTOM_API
from outbox_operator.repeats import REPEAT_SECONDS, RepeatsOf

NAMESPACE = "closed"
RELAYS = CUSTOM["OutboxRelay"]
GROUP, VERSION = CUSTOM_API.split("/")[2:]


def resource(plural: str, kind: str, namespaced: bool) -> dict[str, Any]:
    names = {"name": plural, "singularName": kind.lower(), "kind": kind}
    return {**names, "namespaced": namespaced, "verbs": ["list", "watch"]}


DISCOVERY: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [resource("namespaces", "Namespace", False)]},
    "/apis": {
        "groups": [
            {
                "name": GROUP,
                "preferredVersion": {"version": VERSION},
                "versions": [{"version": VERSION}],
            }
        ]
    },
    CUSTOM_API: {"resources": [resource(k.plural, k.name, True) for k in CUSTOM.values()]},
}
ATTEMPTS = 3


class Forbidding:
    """An API server that lets nobody read the namespace."""

    def __init__(self) -> None:
        self.kopfs_attempts = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if found := DISCOVERY.get(request.path):
            return web.json_response(found)
        if request.path == RELAYS.path(NAMESPACE) and "limit" not in request.query:
            self.kopfs_attempts += 1  # with a limit, it is our own probe
        body = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no rights"}
        return web.json_response(body, status=403)


def kubeconfig(server: str) -> str:
    context = {"cluster": "it", "user": "it"}
    return json.dumps(
        {
            "clusters": [{"name": "it", "cluster": {"server": server}}],
            "users": [{"name": "it", "user": {"token": "unused"}}],
            "contexts": [{"name": "it", "context": context}],
            "current-context": "it",
        }
    )


def test_kopf_logs_a_watch_that_fails_once_and_not_at_every_attempt(tmp_path: Path) -> None:
    """The real Kopf, in the operator's process."""
    server, config, log = Forbidding(), tmp_path / "kubeconfig", tmp_path / "log"
    settings = {"PORT": "0", "NAMESPACES": NAMESPACE}
    environ = {f"OUTBOX_OPERATOR_{name}": value for name, value in settings.items()}

    async def test() -> None:
        async with answering(server.answer) as api:
            config.write_text(kubeconfig(api._api.configuration.host))
            with log.open("wb") as written:
                operator = subprocess.Popen(
                    [sys.executable, "-m", "outbox_operator"],
                    env={**os.environ, **environ, "KUBECONFIG": str(config)},
                    stderr=written,
                )
            try:
                async with asyncio.timeout(30):
                    while server.kopfs_attempts <= ATTEMPTS:  # the last one only ends the wait
                        assert operator.poll() is None, log.read_text()
                        await asyncio.sleep(0.05)
            finally:
                operator.kill()
                operator.wait()

    asyncio.run(test())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kopfs = [line["message"] for line in lines if line["logger"].startswith("kopf")]
    refused = [text for text in kopfs if RELAYS.path(NAMESPACE) in text]
    assert len(refused) == 1, f"after {ATTEMPTS} attempts"
    assert "no rights" in refused[0]


def record(logger: str, text: str, **given: Any) -> logging.LogRecord:
    made = logging.LogRecord(logger, logging.ERROR, "", 0, text, None, given.pop("exc_info", None))
    vars(made).update(given)
    return made


def failure(error: Exception) -> Any:
    return type(error), error, None


def test_a_repeat_is_held_back_for_a_while_whatever_its_number() -> None:
    now = 0.0
    repeats = RepeatsOf("kopf", lambda: now)

    def is_logged(attempt: int, where: str) -> bool:
        text = f"Request attempt #{attempt} failed; will retry: GET {where}"
        return repeats.filter(record("kopf.any.module", text))

    assert is_logged(1, "gone")
    assert not is_logged(2, "gone")
    assert is_logged(1, "closed")
    now = REPEAT_SECONDS
    assert is_logged(20, "gone")


def test_only_what_would_read_the_same_is_held_back_and_only_of_that_logger() -> None:
    repeats = RepeatsOf("kopf")
    text = "a handler failed"
    assert repeats.filter(record("kopf.objects", text, k8s_ref={"name": "orders"}))
    assert repeats.filter(record("kopf.objects", text, k8s_ref={"name": "bills"}))
    for error in (ValueError("this"), ValueError("that")):
        assert repeats.filter(record("kopf.objects", text, exc_info=failure(error)))
        assert not repeats.filter(record("kopf.objects", text, exc_info=failure(error)))
    for logger in ("outbox.operator", "kopfs"):
        assert repeats.filter(record(logger, text))
        assert repeats.filter(record(logger, text))
