"""The names of attempts at a replay."""

from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.shared.names import fitting

LONGEST_ATTEMPT_STEM = 40
"""Characters. A pod's name is also a host name, which has at most 63; Spark adds `-exec-` and a
number to the attempt's name."""


def attempt_name(replay: OutboxReplay, number: int) -> str:
    """The name of the Job or SparkApplication: `again-1`, `again-2`."""
    return f"{fitting(replay.metadata.name, LONGEST_ATTEMPT_STEM)}-{number}"
