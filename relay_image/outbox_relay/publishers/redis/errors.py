"""Whose fault an error of Redis is: a stream's, the server's, or not known (TRANSIENT)."""

from typing import Final

from outbox_core.model.attempt import Error, ErrorClass

ABORTED: Final = "EXECABORT Transaction discarded because of: "
"""Precedes the reason if that arose after the entries were queued."""
ECHO: Final = ", with args beginning with:"
"""How Redis begins to quote a command that it does not know."""


class ReplyError(Exception):
    """An answer that begins with a minus: a code in capitals, and a text."""

    @property
    def text(self) -> str:
        """Without what it repeats of our command, which may be AUTH."""
        return str(self).removeprefix(ABORTED).partition(ECHO)[0]

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]

    def without(self, password: str) -> "ReplyError":
        """Any server, Redis or not, may quote what it was sent."""
        return ReplyError(self.text.replace(password, "***") if password else self.text)


OF_THE_SERVER: Final = frozenset(
    (
        # It takes nothing now: no memory, no replicas, no disk, a replica itself, busy.
        "OOM",
        "NOREPLICAS",
        "LOADING",
        "READONLY",
        "MASTERDOWN",
        "BUSY",
        "MISCONF",
        "UNBLOCKED",
        # It does not know us.
        "NOAUTH",
        "WRONGPASS",
        "DENIED",
        # It is a node of a cluster, which we cannot follow.
        "MOVED",
        "ASK",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "CROSSSLOT",
    )
)

OF_THE_STREAM: Final = frozenset(
    ("WRONGTYPE",)  # something else has its name
)

LETS_NOBODY_IN: Final = frozenset(("NOAUTH", "WRONGPASS", "DENIED", "NOPERM"))
"""The server answers, but a name, a password or a permission is wrong."""

OF_A_CLUSTER: Final = frozenset(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "CROSSSLOT"))

CLUSTER_NODE: Final = "a node of a Redis Cluster, which is not supported"


def kind_of(error: ReplyError) -> ErrorClass:
    code = error.code
    if code in OF_THE_SERVER or _is_about_login(error):
        return ErrorClass.OUTAGE
    if code == "NOPERM":
        # For a key it is this stream alone; for a command it is all of them. Not by the word "key":
        # the text contains our user's name too.
        is_of_key = "permissions to access" in error.text
        return ErrorClass.DESTINATION if is_of_key else ErrorClass.OUTAGE
    if code in OF_THE_STREAM:
        return ErrorClass.DESTINATION
    # A code that we do not know. It is retried, because it may be repaired, but not forever, or a
    # mistake would go unnoticed. No code is certainly the event's own fault: what is, is refused
    # before it is sent.
    return ErrorClass.TRANSIENT


def error_of(error: ReplyError) -> Error:
    text = error.text
    if error.code in OF_A_CLUSTER:
        text = f"{CLUSTER_NODE}: {text}"
    return Error.of(kind_of(error), error.code, text)


def lets_nobody_in(error: ReplyError) -> bool:
    return error.code in LETS_NOBODY_IN or _is_about_login(error)


def _is_about_login(error: ReplyError) -> bool:
    # Without a code of its own: a password was given, and the server has none.
    return error.text.startswith("ERR AUTH ")
