"""
Readiness: whether the operator may be called ready, and what to do about a watch that does not
work.

In one namespace everything depends on everything: while one kind is not known there, nothing of it
is judged. Namespaces do not depend on each other: of several that are named, one that is gone or
may not be read is reported, and leaves the operator in service for the others.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from outbox_operator.kube.watch.state import Watch

REFUSED_USER = re.compile(r'User "([^"]+)"')
"""Whose request the API server refused: its message names the user."""


@dataclass(frozen=True)
class Readiness:
    ready: bool
    message: str
    """For people; several lines where several watches do not work."""


def readiness(watches: Sequence[Watch]) -> Readiness:
    if not watches:
        return Readiness(False, "not watching yet: OutboxRelay and OutboxReplay are waited for")
    places = list(dict.fromkeys(w.namespace for w in watches))
    of = {place: [w for w in watches if w.namespace == place] for place in places}
    whole = [place for place in places if all(w.synced for w in of[place])]
    if len(whole) == len(places):
        return Readiness(True, "ready")
    waiting = [w for w in watches if not w.synced]
    lines = [f"{place_of(w)}: {w.resource}: {w.trouble or 'not listed yet'}" for w in waiting]
    # At the start one waits until it is known of each: what works may be a matter of a moment.
    judged = all(w.is_known for w in watches)
    if whole and judged:
        text = f"ready in {len(whole)} of {len(places)} namespaces; these watches do not work:"
        return Readiness(True, "\n".join([text, *lines]))
    return Readiness(False, "\n".join(["these watches do not work:", *lines]))


def place_of(watch: Watch) -> str:
    return f"namespace {watch.namespace}" if watch.namespace else "all namespaces"


def advice(watch: Watch) -> str:
    """What does not work, what follows, and the cure."""
    text = (
        f"cannot watch {watch.resource} in {place_of(watch)}: {watch.trouble}; until it can, "
        "resources there are not looked after"
    )
    return f"{text}; {cure(watch)}" if watch.forbidden else f"{text}; trying again"


def cure(watch: Watch) -> str:
    found = REFUSED_USER.search(watch.trouble or "")
    user = f" --as {found[1]}" if found else ""
    where = f"-n {watch.namespace}" if watch.namespace else "-A"
    named = f"{watch.namespace} in" if watch.namespace else "no"
    gone = "; if the namespace is gone, take it out of these" if watch.namespace else ""
    return (
        f"check with `kubectl auth can-i list {watch.resource} {where}{user}`, and the same with "
        f"watch; the chart grants both with rbac.create=true and {named} watch.namespaces{gone}; "
        "without the chart grant what docs/install.md lists. It goes on by itself then"
    )
