"""
Readiness: whether the operator is ready, and what to do about a watch that does not work.

Within a namespace all kinds depend on each other: until every one of them is listed, nothing there
is reconciled. Namespaces do not: if several are configured and one is gone or may not be read, it
is reported, and the operator stays ready for the others.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from outbox_operator.kinds import all_kinds
from outbox_operator.kube.watch.state import Watch

REFUSED_USER = re.compile(r'User "([^"]+)"')
"""The user whose request the API server refused, from its message."""


@dataclass(frozen=True)
class Readiness:
    ready: bool
    message: str
    """For people; one line per watch that does not work."""


def readiness(watches: Sequence[Watch]) -> Readiness:
    if not watches:
        return Readiness(False, f"not watching yet: waiting for the kinds {all_kinds()}")
    places = list(dict.fromkeys(w.namespace for w in watches))
    of = {place: [w for w in watches if w.namespace == place] for place in places}
    whole = [place for place in places if all(w.synced for w in of[place])]
    if len(whole) == len(places):
        return Readiness(True, "ready")
    waiting = [w for w in watches if not w.synced]
    lines = [f"{place_of(w)}: {w.resource}: {w.trouble or 'not listed yet'}" for w in waiting]
    # At the start, wait until each watch has worked or failed: it may only be a matter of moments.
    judged = all(w.is_known for w in watches)
    if whole and judged:
        text = f"ready in {len(whole)} of {len(places)} namespaces; these watches do not work:"
        return Readiness(True, "\n".join([text, *lines]))
    return Readiness(False, "\n".join(["these watches do not work:", *lines]))


def place_of(watch: Watch) -> str:
    return f"namespace {watch.namespace}" if watch.namespace else "all namespaces"


def advice(watch: Watch) -> str:
    """What does not work, what that means, and the cure."""
    text = (
        f"cannot watch {watch.resource} in {place_of(watch)}: {watch.trouble}; until it can, "
        "resources there are not reconciled"
    )
    return f"{text}; {cure(watch)}" if watch.forbidden else f"{text}; trying again"


def cure(watch: Watch) -> str:
    found = REFUSED_USER.search(watch.trouble or "")
    user = f" --as {found[1]}" if found else ""
    where = f"-n {watch.namespace}" if watch.namespace else "-A"
    named = f"{watch.namespace} in" if watch.namespace else "no"
    gone = "; if the namespace is gone, remove it from there" if watch.namespace else ""
    return (
        f"check with `kubectl auth can-i list {watch.resource} {where}{user}`, and the same with "
        f"watch; the chart grants both with rbac.create=true and {named} watch.namespaces{gone}; "
        "without the chart, grant what docs/install.md lists. The operator then continues by itself"
    )
