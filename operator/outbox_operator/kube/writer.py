"""
The writer: applies children, creates one-time children, removes unwanted ones, and writes status,
finalizers and Events of a resource.

Called by the reconciler of each kind. It writes what was decided, and only where the cluster
differs from it (`refusals`); an object that somebody else owns is never touched.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from outbox_operator.kube.api import Api, ApiError, JsonObject
from outbox_operator.kube.kinds import CHILDREN, CUSTOM, EVENTS
from outbox_operator.kube.refusals import (
    WAITING_FOR_OLDER,
    as_seen,
    binds_another_role,
    describe_owner,
    differs,
    not_ours,
    refusal_of,
    was_replaced,
    would_use_foreign,
)
from outbox_operator.shared.marks import (
    OPERATOR,
    annotated,
    is_orphan,
    is_owned,
    stamped,
)
from outbox_operator.shared.notices import Notice
from outbox_operator.shared.objects import API_VERSION, Resource
from outbox_operator.shared.seen import ChildKey, Refusal, Surroundings, Written, is_older
from outbox_operator.shared.texts import event_text

Around = TypeVar("Around", bound=Surroundings)

log = logging.getLogger("outbox.operator")

COMPONENT = "outbox-operator"


class Writer:
    def __init__(self, api: Api, identity: str = "local") -> None:
        """`identity` is put on every child."""
        self._api = api
        self._identity = identity
        self._settled: dict[str, dict[str, tuple[JsonObject, str]]] = {}
        """By resource and path: what we wanted, and the version that already was, or became, so.
        Comparing costs more than the rest of a reconcile; and a value that the server spells
        differently from us would always look different: it is written only once."""
        self._written: dict[str, dict[ChildKey, Written]] = {}
        """By resource: when we last wrote each child, and the version that resulted."""
        self._reported: dict[str, tuple[str, JsonObject]] = {}
        """By resource: the version that resulted from our last status, and that status."""

    async def apply(self, resource: Resource, wanted: Iterable[JsonObject], seen: Around) -> Around:
        """Returns what is seen now: children as they were just written, and those that were
        refused. Judged by what was there before, a change that has only begun would look done."""
        children = dict(seen.children)
        refusals: list[Refusal] = []
        for child in wanted:
            kind, name = child["kind"], child["metadata"]["name"]
            live = seen.child(kind, name)
            if live is None and would_use_foreign(child, refusals):
                continue
            try:
                done = await self._apply_one(resource, child, live)
            except ApiError as error:
                if was_replaced(error):
                    why = f"{kind} {name} was replaced or deleted since it was seen"
                    raise ApiError(409, "Conflict", why, frozenset()) from error
                done = refusal_of(kind, name, error)
            if isinstance(done, Refusal):
                refusals.append(done)
            elif done is not None:
                children[kind, name] = done
        return replace(seen, children=children, refusals=refusals)

    async def _apply_one(
        self, resource: Resource, child: JsonObject, live: Mapping[str, Any] | None
    ) -> JsonObject | Refusal | None:
        """The child as it was written; None: there was nothing to write."""
        kind = CHILDREN[child["kind"]]
        name = child["metadata"]["name"]
        path = kind.path(resource.metadata.namespace, name)
        settled = self._settled.setdefault(resource.metadata.uid, {})
        if live is None:
            live = await self._api.find(path)
        if live is not None and (refusal := not_ours(resource, child, live)):
            return refusal
        if live is not None and binds_another_role(child, live):
            await self._unbind(resource, path, live)
            live = None
        if live is not None:
            if kind.name == "Job":  # a Job cannot be changed
                return None
            version = live["metadata"]["resourceVersion"]
            before, at = settled.get(path, (None, ""))
            if at == version and (before is child or before == child):
                return None
            if not differs(stamped(child, self._identity), live):
                settled[path] = child, version
                return None
        done = await self._api.apply(path, as_seen(stamped(child, self._identity), live))
        version = done["metadata"]["resourceVersion"]
        settled[path] = child, version
        written = self._written.setdefault(resource.metadata.uid, {})
        written[kind.name, name] = Written(datetime.now(UTC), version)
        log.info(
            "%s %s %s",
            "created" if live is None else "adopted" if is_orphan(live) else "changed",
            kind.name,
            name,
            extra={"event": "apply", **_names(resource)},
        )
        return done

    async def _unbind(self, resource: Resource, path: str, live: Mapping[str, Any]) -> None:
        """Its role cannot be changed: it is deleted and created again."""
        await self._api.delete(path, live["metadata"]["uid"])
        name = live["metadata"]["name"]
        log.info("removed RoleBinding %s", name, extra={"event": "apply", **_names(resource)})

    def written(self, uid: str) -> Mapping[ChildKey, Written]:
        """The children that this process wrote for that resource."""
        return self._written.get(uid, {})

    async def create(self, resource: Resource, child: JsonObject) -> Refusal | None:
        """Create it once: an existing object is left as it is."""
        kind, name = CHILDREN[child["kind"]], child["metadata"]["name"]
        marked = annotated(child, {OPERATOR: self._identity})
        try:
            await self._api.create(kind.path(resource.metadata.namespace), marked)
        except ApiError as error:
            if error.status != 409:
                return refusal_of(kind.name, name, error)
            other = await self._api.find(kind.path(resource.metadata.namespace, name))
            if other is None or "deletionTimestamp" in other["metadata"]:
                return Refusal(kind.name, name, WAITING_FOR_OLDER, temporary=True)
            return (
                None
                if is_owned(other, resource)
                else Refusal(kind.name, name, describe_owner(other, resource), taken=True)
            )
        log.info("created %s %s", kind.name, name, extra={"event": "apply", **_names(resource)})
        return None

    async def expire(self, resource: Resource) -> None:
        """Delete the resource itself."""
        meta = resource.metadata
        await self._api.delete(_path(resource), meta.uid)
        log.info("removed %s %s", resource.kind, meta.name, extra={"event": "expire"})

    async def remove(
        self, resource: Resource, unwanted: Iterable[tuple[str, str]], seen: Surroundings
    ) -> list[Refusal]:
        """Returns those that the API server refused to remove."""
        refusals: list[Refusal] = []
        for kind, name in unwanted:
            live = seen.child(kind, name)
            if live is None or "deletionTimestamp" in live["metadata"]:
                continue
            path = CHILDREN[kind].path(resource.metadata.namespace, name)
            try:
                await self._api.delete(path, live["metadata"]["uid"])
            except ApiError as error:
                if error.status == 409:  # another one has its name now
                    raise
                refusals.append(refusal_of(kind, name, error, "it cannot be removed: "))
                continue
            log.info("removed %s %s", kind, name, extra={"event": "apply", **_names(resource)})
        return refusals

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        self._settled.pop(uid, None)
        self._written.pop(uid, None)
        self._reported.pop(uid, None)

    def latest(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The resource with the status that we wrote last, if it was seen before that write: the
        watch may lag, and a reconcile with an older status would announce and write everything
        again."""
        metadata = body["metadata"]
        version, status = self._reported.get(metadata["uid"], ("", {}))
        return {**body, "status": status} if is_older(metadata, version) else body

    async def report(self, resource: Resource, status: JsonObject, before: JsonObject) -> bool:
        """Returns whether there was anything to write."""
        if status == before:
            return False
        path = _path(resource, "status")
        # The uid, so that the status does not create a resource that was deleted meanwhile.
        body = {
            "apiVersion": API_VERSION,
            "kind": resource.kind,
            "metadata": {"name": resource.metadata.name, "uid": resource.metadata.uid},
            "status": status,
        }
        done = await self._api.apply(path, body)
        self._reported[resource.metadata.uid] = done["metadata"]["resourceVersion"], status
        return True

    async def set_finalizers(self, resource: Resource, finalizers: list[str]) -> JsonObject:
        """Returns the resource as it is then."""
        meta = {
            "finalizers": finalizers,
            # Refused if it has changed: otherwise a finalizer of somebody else could be lost.
            "resourceVersion": resource.metadata.resource_version,
        }
        return await self._api.merge(_path(resource), {"metadata": meta})

    async def announce(self, resource: Resource, notices: Iterable[Notice], now: datetime) -> None:
        """As Events."""
        for notice in notices:
            await self._announce_one(resource, notice, now)

    async def _announce_one(self, resource: Resource, notice: Notice, now: datetime) -> None:
        at = now.isoformat(timespec="seconds").replace("+00:00", "Z")
        meta = resource.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta.name[:200]}.", "namespace": meta.namespace},
            "type": "Warning" if notice.warning else "Normal",
            "reason": notice.reason,
            "message": event_text(notice.message),
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": resource.kind,
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            await self._api.create(EVENTS.path(meta.namespace), body)
        except ApiError as error:  # nothing else depends on an Event
            log.warning("cannot write an Event: %s", error, extra=_names(resource))


def _path(resource: Resource, part: str | None = None) -> str:
    meta = resource.metadata
    return CUSTOM[resource.kind].path(meta.namespace, meta.name, part)


def _names(resource: Resource) -> dict[str, str]:
    return {"namespace": resource.metadata.namespace, "resource": resource.metadata.name}
