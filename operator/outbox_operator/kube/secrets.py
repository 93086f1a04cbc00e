"""
Secrets: whether they exist, and when they change. Their content is never requested.

They are read one by one, never listed or watched: the right to list Secrets is the right to read
all of them.
"""

import time
from collections.abc import Iterable

from outbox_operator.kube.api import Api, JsonObject
from outbox_operator.kube.kinds import SECRETS
from outbox_operator.shared.seen import Secret


class Secrets:
    def __init__(self, api: Api, seconds: float) -> None:
        """`seconds`: how long an answer is used again."""
        self._api = api
        self._seconds = seconds
        self._known: dict[tuple[str, str], tuple[float, str | None]] = {}

    async def check(self, namespace: str, names: Iterable[str]) -> list[Secret]:
        return [Secret(name, await self._version(namespace, name)) for name in names]

    async def _version(self, namespace: str, name: str) -> str | None:
        at, version = self._known.get((namespace, name), (0.0, None))
        if version is None or time.monotonic() - at > self._seconds:
            found = await self._api.get_metadata(SECRETS.path(namespace, name))
            version = None if found is None else _identity(found)
            self._known[namespace, name] = time.monotonic(), version
        return version


def _identity(body: JsonObject) -> str:
    return f"{body['metadata']['uid']}/{body['metadata']['resourceVersion']}"
