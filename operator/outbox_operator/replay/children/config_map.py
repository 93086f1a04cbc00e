"""The ConfigMap of a replay: replay.json for the driver, executor.yaml for Spark."""

import json

import yaml

from outbox_operator.replay.children.pod import executor_template
from outbox_operator.replay.spec.resource import OutboxReplay
from outbox_operator.replay.spec.settings import replay_settings
from outbox_operator.replay.spec.target import TargetRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest, owned
from outbox_operator.shared.yaml_text import DUMPER


def build_replay_config(
    replay: OutboxReplay, relay: TargetRelay, operator: OperatorSettings
) -> Manifest:
    files = {"replay.json": json.dumps(replay_settings(replay, relay), indent=2, sort_keys=True)}
    if replay.has_executors:
        pod = {"apiVersion": "v1", "kind": "Pod", **executor_template(replay, relay, operator)}
        files["executor.yaml"] = yaml.dump(pod, Dumper=DUMPER, sort_keys=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned(replay, "replay"),
        "data": files,
    }
