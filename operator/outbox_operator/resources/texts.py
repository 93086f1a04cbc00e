"""
Texts that fit where Kubernetes keeps them. What others say (an API server, a broker, a pod) has any
length; one that is too long is refused with all that it came with, at every attempt.

Used by `conditions` and by `cluster.client`, which writes Events and hears why a child is refused.
"""

CONDITION_CHARACTERS = 32768
"""Of a condition's message, as Kubernetes has it everywhere; our definitions say so, too."""
EVENT_BYTES = 1024
"""Of an Event's message, in UTF-8."""
REFUSAL_CHARACTERS = 1000
"""Of what an API server says against a child: it may repeat all that it was sent."""
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
