"""The names of attempts at a replay."""

from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.shared.names import fitting

LONGEST_ATTEMPT_STEM = 40
"""Characters. A pod is a host as well, whose name has at most 63; to the attempt's name Spark adds
`-exec-` and a number."""


def attempt_name(replay: OutboxReplay, number: int) -> str:
    """Of the Job or SparkApplication: `again-1`, `again-2`."""
    return f"{fitting(replay.metadata.name, LONGEST_ATTEMPT_STEM)}-{number}"
