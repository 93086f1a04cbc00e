"""
Texts that fit where Kubernetes keeps them. Messages of others (an API server, a broker, a pod) have
any length; one that is too long is refused with everything it came with, at every attempt.

Used by `conditions`, and by `kube` for Events and for refusals of children.
"""

CONDITION_CHARACTERS = 32768
"""Of a condition's message, as Kubernetes has it everywhere; our definitions have the same
limit."""
EVENT_BYTES = 1024
"""Of an Event's message, in UTF-8."""
REFUSAL_CHARACTERS = 1000
"""Of the API server's message about a child: it may repeat all that it was sent."""
MORE = "…"


def condition_text(text: str) -> str:
    if len(text) <= CONDITION_CHARACTERS:
        return text
    return text[: CONDITION_CHARACTERS - len(MORE)] + MORE


def event_text(text: str) -> str:
    """Cut between characters, never within one."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= EVENT_BYTES:
        return encoded.decode()
    kept = encoded[: EVENT_BYTES - len(MORE.encode())]
    return kept.decode(errors="ignore") + MORE


def refusal_text(text: str) -> str:
    """In one line."""
    line = " ".join(text.split())
    if len(line) <= REFUSAL_CHARACTERS:
        return line
    return line[: REFUSAL_CHARACTERS - len(MORE)] + MORE
