"""
The writer: applies children, makes those that are made once, removes those that are no longer
wanted, reports status and events.

It writes what `decide` said, and only where the cluster differs from it; an object that somebody
else owns is never touched.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from outbox_operator.children.marks import (
    OPERATOR,
    annotated,
    bears_our_marks,
    is_adoptable,
    is_orphan,
    obstacle,
    stamped,
)
from outbox_operator.cluster.api import Api, ApiError, Body
from outbox_operator.cluster.gather import is_owned
from outbox_operator.cluster.kinds import CHILDREN, EVENTS, Kind
from outbox_operator.resources.objects import API_VERSION, Resource
from outbox_operator.resources.texts import event_text, refusal_text
from outbox_operator.seen import ChildKey, Refusal, Surroundings, Written, is_older

Around = TypeVar("Around", bound=Surroundings)

log = logging.getLogger("outbox.operator")

COMPONENT = "outbox-operator"
NOT_ITS_FAULT = (
    "failed to create typed patch object",
    "failed calling webhook",
    "denied the request",  # by a webhook that failed itself
)
"""In what the API server says with the status 500. Newer ones may answer the first with 400:
kubernetes/kubernetes#139253."""
OLDER = "waiting until an older one is gone"
UNSAID = {"paused": False}
"""What the server leaves out where it is so."""


class Writer:
    def __init__(self, api: Api, identity: str = "local") -> None:
        """`identity` is put on every child."""
        self._api = api
        self._identity = identity
        self._settled: dict[str, dict[str, tuple[Body, str]]] = {}
        """By resource and path: what we wanted, and the version that was found or made to be so.
        Comparing costs more than all else of a look; and what the server spells in another way than
        we do looks different for ever: it is written once."""
        self._written: dict[str, dict[ChildKey, Written]] = {}
        """By resource: when we wrote each child last, and the version that it got."""
        self._reported: dict[str, tuple[str, Body]] = {}
        """By resource: the version that our last status made of it, and that status."""

    async def apply(self, resource: Resource, wanted: Iterable[Body], seen: Around) -> Around:
        """What is seen now: children as they were just written, and those that were refused. Who
        judged by what was there before would take a change for done that has only begun."""
        children = dict(seen.children)
        refusals: list[Refusal] = []
        for child in wanted:
            kind, name = child["kind"], child["metadata"]["name"]
            live = seen.child(kind, name)
            if live is None and would_use_anothers(child, refusals):
                continue
            try:
                done = await self._apply_one(resource, child, live)
            except ApiError as error:
                if is_another_now(error):
                    why = f"{kind} {name} is another one since it was seen, or gone"
                    raise ApiError(409, "Conflict", why, frozenset()) from error
                done = refusal_of(kind, name, error)
            if isinstance(done, Refusal):
                refusals.append(done)
            elif done is not None:
                children[kind, name] = done
        return replace(seen, children=children, refusals=refusals)

    async def _apply_one(
        self, resource: Resource, child: Body, live: Mapping[str, Any] | None
    ) -> Body | Refusal | None:
        """As it was written; None: there was nothing to write."""
        kind = CHILDREN[child["kind"]]
        name = child["metadata"]["name"]
        path = kind.path(resource.metadata.namespace, name)
        settled = self._settled.setdefault(resource.metadata.uid, {})
        if live is None:
            live = await self._api.find(path)
        if live is not None and (refusal := not_ours(resource, child, live)):
            return refusal
        if live is not None and is_bound_otherwise(child, live):
            await self._unbind(resource, path, live)
            live = None
        if live is not None:
            if kind.name == "Job":  # cannot be changed
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
            "made" if live is None else "adopted" if is_orphan(live) else "changed",
            kind.name,
            name,
            extra={"event": "apply", **_names(resource)},
        )
        return done

    async def _unbind(self, resource: Resource, path: str, live: Mapping[str, Any]) -> None:
        """Its role cannot be changed: it is made again."""
        await self._api.delete(path, live["metadata"]["uid"])
        name = live["metadata"]["name"]
        log.info("removed RoleBinding %s", name, extra={"event": "apply", **_names(resource)})

    def written(self, uid: str) -> Mapping[ChildKey, Written]:
        """By this process, for that resource."""
        return self._written.get(uid, {})

    async def create(self, resource: Resource, child: Body) -> Refusal | None:
        """Once: what is there already is left as it is."""
        kind, name = CHILDREN[child["kind"]], child["metadata"]["name"]
        marked = annotated(child, {OPERATOR: self._identity})
        try:
            await self._api.create(kind.path(resource.metadata.namespace), marked)
        except ApiError as error:
            if error.status != 409:
                return refusal_of(kind.name, name, error)
            other = await self._api.find(kind.path(resource.metadata.namespace, name))
            if other is None or "deletionTimestamp" in other["metadata"]:
                return Refusal(kind.name, name, OLDER, passing=True)
            return (
                None
                if is_owned(other, resource)
                else Refusal(kind.name, name, _whose(other, resource), taken=True)
            )
        log.info("made %s %s", kind.name, name, extra={"event": "apply", **_names(resource)})
        return None

    async def expire(self, kind: Kind, resource: Resource) -> None:
        """Delete the resource itself."""
        meta = resource.metadata
        await self._api.delete(kind.path(meta.namespace, meta.name), meta.uid)
        log.info("removed %s %s", kind.name, meta.name, extra={"event": "expire"})

    async def remove(
        self, resource: Resource, unwanted: Iterable[tuple[str, str]], seen: Surroundings
    ) -> list[Refusal]:
        """Those that the API server did not let us remove."""
        refusals: list[Refusal] = []
        for kind, name in unwanted:
            live = seen.child(kind, name)
            if live is None or "deletionTimestamp" in live["metadata"]:
                continue
            path = CHILDREN[kind].path(resource.metadata.namespace, name)
            try:
                await self._api.delete(path, live["metadata"]["uid"])
            except ApiError as error:
                if error.status == 409:  # it is another one by now
                    raise
                refusals.append(refusal_of(kind, name, error, "it cannot be removed: "))
                continue
            log.info("removed %s %s", kind, name, extra={"event": "apply", **_names(resource)})
        return refusals

    def forget(self, uid: str) -> None:
        """A resource that is gone."""
        self._settled.pop(uid, None)
        self._written.pop(uid, None)
        self._reported.pop(uid, None)

    def latest(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A resource with the status that we wrote last, where it was seen before that: the watch
        may lag, and who judged by an older status would tell and write everything again."""
        metadata = body["metadata"]
        version, status = self._reported.get(metadata["uid"], ("", {}))
        return {**body, "status": status} if is_older(metadata, version) else body

    async def report(self, kind: Kind, resource: Resource, status: Body, before: Body) -> bool:
        """Whether there was anything to write."""
        if status == before:
            return False
        path = kind.path(resource.metadata.namespace, resource.metadata.name, "status")
        # The uid: a resource that was deleted meanwhile is not made again by its own status.
        body = {
            "apiVersion": API_VERSION,
            "kind": resource.kind,
            "metadata": {"name": resource.metadata.name, "uid": resource.metadata.uid},
            "status": status,
        }
        done = await self._api.apply(path, body)
        self._reported[resource.metadata.uid] = done["metadata"]["resourceVersion"], status
        return True

    async def hold(self, kind: Kind, resource: Resource, finalizers: list[str]) -> Body:
        """The resource as it is then."""
        path = kind.path(resource.metadata.namespace, resource.metadata.name)
        meta = {
            "finalizers": finalizers,
            "resourceVersion": resource.metadata.resource_version,  # of others' nothing is lost
        }
        return await self._api.merge(path, {"metadata": meta})

    async def tell(
        self, resource: Resource, reason: str, message: str, *, warning: bool, now: datetime
    ) -> None:
        at = now.isoformat(timespec="seconds").replace("+00:00", "Z")
        meta = resource.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta.name[:200]}.", "namespace": meta.namespace},
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": event_text(message),
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
        except ApiError as error:  # people miss a line; nothing else depends on it
            log.warning("cannot write an Event: %s", error, extra=_names(resource))


def refusal_of(kind: str, name: str, error: ApiError, prefix: str = "") -> Refusal:
    """Unless it is the server that is not well: that is tried again."""
    if error.status == 429 or (error.status >= 500 and not is_about_the_child(error)):
        raise error
    leaving = "NamespaceTerminating" in error.causes
    return Refusal(kind, name, prefix + refusal_text(str(error)), leaving=leaving)


def is_another_now(error: ApiError) -> bool:
    """By the uid that it was written with: the object is gone (409), or somebody has made another
    of its name, of which the server says that its uid cannot be changed."""
    return error.status == 409 or (error.status == 422 and "metadata.uid: " in str(error))


def is_about_the_child(error: ApiError) -> bool:
    """The server is well, and calls it its own fault all the same: a field that it does not know,
    or a key of a list that is there twice; and an admission webhook that does not answer."""
    return error.status == 500 and any(words in str(error) for words in NOT_ITS_FAULT)


def would_use_anothers(child: Body, refusals: Iterable[Refusal]) -> bool:
    """Whether its pods would read a ConfigMap, or be a ServiceAccount, that is somebody else's."""
    makes_pods = child["kind"] in ("Deployment", "CronJob", "Job")
    return makes_pods and any(
        r.taken and r.kind in ("ConfigMap", "ServiceAccount") for r in refusals
    )


def not_ours(resource: Resource, child: Body, live: Mapping[str, Any]) -> Refusal | None:
    """Of an object that has the child's name; None: it is ours, or is adopted."""
    kind, name = child["kind"], child["metadata"]["name"]
    if is_owned(live, resource):
        return None
    if "deletionTimestamp" in live["metadata"]:
        return Refusal(kind, name, OLDER, passing=True)
    if not is_adoptable({**live, "kind": kind}, resource):
        return Refusal(kind, name, _whose(live, resource), taken=True)
    if why := obstacle(child, live):
        return Refusal(kind, name, why, taken=True)
    return None


def as_seen(child: Body, live: Mapping[str, Any] | None) -> Body:
    """To be written over that very object, and over none that has its name since."""
    if live is None:
        return child
    return {**child, "metadata": {**child["metadata"], "uid": live["metadata"]["uid"]}}


def is_bound_otherwise(child: Body, live: Mapping[str, Any]) -> bool:
    """A RoleBinding to another role, such as that of an operator that was installed in another way:
    for the whole cluster, or under another name."""
    return "roleRef" in child and bool(child["roleRef"] != live.get("roleRef"))


def differs(wanted: Any, live: Any) -> bool:
    """Whether something that we want is not so. What others added is theirs; what we wanted before
    is told by the digest."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return bool(wanted) or live is not None
        return any(differs(value, live.get(key, UNSAID.get(key))) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return bool(wanted)
        if wanted and all(isinstance(w, Mapping) and "name" in w for w in wanted):
            named = {item.get("name"): item for item in live if isinstance(item, Mapping)}
            return any(differs(w, named.get(w["name"])) for w in wanted)
        return len(wanted) != len(live) or any(
            differs(w, found) for w, found in zip(wanted, live, strict=True)
        )
    return bool(wanted != live)


def _whose(other: Mapping[str, Any], resource: Resource) -> str:
    if owners := other["metadata"].get("ownerReferences") or ():
        return f"it belongs to {owners[0]['kind']} {owners[0]['name']}"
    if bears_our_marks(other, resource):
        return f"it is left over from another {resource.kind} of this name"
    return "it is not ours"


def _names(resource: Resource) -> dict[str, str]:
    return {"namespace": resource.metadata.namespace, "resource": resource.metadata.name}
