"""
Texts cut to the limits of Kubernetes. Messages from others (an API server, a broker, a pod) can
have any length; Kubernetes would refuse one that is too long, and the whole status or Event with
it, at every attempt.

Used by `conditions`, and by `kube` for Events and for refusals of children.
"""

CONDITION_CHARACTERS = 32768
"""The limit of a condition's message everywhere in Kubernetes, and in our CRDs."""
EVENT_BYTES = 1024
"""The limit of an Event's message, in UTF-8."""
REFUSAL_CHARACTERS = 1000
"""Our limit of the API server's message about a child, which may repeat all that was sent."""
ELLIPSIS = "…"


def condition_text(text: str) -> str:
    if len(text) <= CONDITION_CHARACTERS:
        return text
    return text[: CONDITION_CHARACTERS - len(ELLIPSIS)] + ELLIPSIS


def event_text(text: str) -> str:
    """Cut between characters, never inside one."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= EVENT_BYTES:
        return encoded.decode()
    kept = encoded[: EVENT_BYTES - len(ELLIPSIS.encode())]
    return kept.decode(errors="ignore") + ELLIPSIS


def refusal_text(text: str) -> str:
    """In one line."""
    line = " ".join(text.split())
    if len(line) <= REFUSAL_CHARACTERS:
        return line
    return line[: REFUSAL_CHARACTERS - len(ELLIPSIS)] + ELLIPSIS
