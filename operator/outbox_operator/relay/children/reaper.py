"""The CronJob that takes back what dead relays had claimed, unless a living one already has."""

from outbox_operator.relay.children.pod import CONFIG_FILE, container, pod_template
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest, labels, owned

DEADLINE_SECONDS = 120
"""Reaping takes well under a second; a run that takes this long hangs, and the next one tries
again."""


def build_reaper(
    relay: OutboxRelay, operator: OperatorSettings, config: str, *, suspended: bool
) -> Manifest:
    job: Manifest = {
        "backoffLimit": 0,  # the schedule is the retry
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "template": pod_template(
            relay,
            operator,
            "reaper",
            config,
            [container(relay, operator, "reap", ["reap", "--config", CONFIG_FILE])],
            restartPolicy="Never",
        ),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": owned(relay, "reaper"),
        "spec": {
            "schedule": relay.spec.reaper.schedule,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 30,  # a late run is no better than the next one
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "suspend": suspended,
            "jobTemplate": {
                "metadata": {"labels": labels(relay, "reaper")},
                "spec": job,
            },
        },
    }
