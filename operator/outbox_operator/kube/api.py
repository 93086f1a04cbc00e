"""
The API server: plain requests with plain objects, and their errors.

Used by all of `kube`, and by `gather` of the kinds. The Kubernetes client provides credentials,
their renewal and connections. Its models and generated methods are not used, because server-side
apply needs exactly the fields that we own, and nothing that a model adds.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from kubernetes.aio import client, config

JsonObject = dict[str, Any]

MANAGER = "outbox-operator"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

WATCH_SECONDS = 290
"""The server ends a watch after this time, and we start it again: a dead connection goes unnoticed
for no longer than that."""


class ApiError(Exception):
    """The server refused the request."""

    def __init__(self, status: int, reason: str, message: str, causes: frozenset[str]) -> None:
        super().__init__(message or reason or f"HTTP {status}")
        self.status = status
        self.reason = reason
        self.causes = causes

    @property
    def is_absence(self) -> bool:
        """The object does not exist. A 404 without a reason is about the path: the CRD is missing,
        or the server has only just started."""
        return self.status == 404 and self.reason == "NotFound"

    @classmethod
    def of(cls, status: int, content: bytes) -> "ApiError":
        try:
            body = json.loads(content)
            causes = (body.get("details") or {}).get("causes") or ()
            return cls(
                status,
                body.get("reason", ""),
                body.get("message", ""),
                frozenset(c.get("reason", "") for c in causes),
            )
        except (ValueError, AttributeError):
            return cls(status, "", content[:200].decode(errors="replace"), frozenset())


class Unreachable(Exception):
    """No answer: the server is restarting, or the network is broken."""


def configuration() -> client.Configuration:
    settings = client.Configuration()
    settings.retries = None  # we decide when to try again
    # No limit: every watch, of each kind in each configured namespace, keeps a connection, and with
    # a limit other requests could wait forever. There are as many of those as workers.
    settings.connection_pool_maxsize = 0
    return settings


class Api:
    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    @classmethod
    async def connect(cls) -> "Api":
        settings = configuration()
        try:
            config.load_incluster_config(settings)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=settings)
        return cls(client.ApiClient(settings))

    async def close(self) -> None:
        await self._api.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        return await self._request("GET", path, query)

    async def find(self, path: str) -> JsonObject | None:
        """None: the object does not exist."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.is_absence:
                return None
            raise

    async def get_metadata(self, path: str) -> JsonObject | None:
        """Without the content: a Secret's data never enters this process."""
        try:
            return await self._request("GET", path, accept=METADATA_ONLY)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def apply(self, path: str, body: JsonObject) -> JsonObject:
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, body, APPLY)

    async def merge(self, path: str, body: JsonObject) -> JsonObject:
        return await self._request("PATCH", path, {"fieldManager": MANAGER}, body, MERGE)

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        return await self._request(
            "POST", path, {"fieldManager": MANAGER}, body, "application/json"
        )

    async def delete(self, path: str, uid: str) -> None:
        """Only the object with this uid, not one created under the same name since."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._request("DELETE", path, None, body, "application/json")
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(
        self, path: str, query: Mapping[str, str], begun: Callable[[], None] = lambda: None
    ) -> AsyncIterator[JsonObject]:
        """Runs until the server ends the watch. `begun` is called when the server has accepted it:
        the first event may come much later."""
        whole = {**query, "watch": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        response = await self._call("GET", path, whole, timeout=WATCH_SECONDS + 30)
        try:
            if response.status >= 400:
                raise ApiError.of(response.status, await response.read())
            begun()
            async for line in response.content:
                yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            response.close()

    async def begin_watch(self, path: str, version: str) -> None:
        """Only to see whether the server accepts the watch."""
        query = {"watch": "true", "timeoutSeconds": "1", "resourceVersion": version}
        response = await self._call("GET", path, query)
        try:
            if response.status >= 400:
                raise ApiError.of(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            response.close()

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str | None = None,
        accept: str = "application/json",
    ) -> JsonObject:
        response = await self._call(method, path, query, body, content_type, accept)
        try:
            content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        if response.status >= 400:
            raise ApiError.of(response.status, content)
        found: JsonObject = json.loads(content)
        return found

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str | None = None,
        accept: str = "application/json",
        timeout: float = 30,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": accept}
        if content_type:
            headers["Content-Type"] = content_type
        _, url, headers, data, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._api.rest_client.request(
                method,
                url,
                headers=headers,
                body=data,
                _request_timeout=aiohttp.ClientTimeout(timeout),
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        response: aiohttp.ClientResponse = answer.response
        return response
