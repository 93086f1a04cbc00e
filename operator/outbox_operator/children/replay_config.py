"""The ConfigMap of a replay: replay.json for the driver, executor.yaml for Spark."""

import json

import yaml

from outbox_operator.children.config_map import DUMPER
from outbox_operator.children.names import Manifest, owned
from outbox_operator.children.replay_pods import executor_template
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.replay import OutboxReplay
from outbox_operator.resources.replay_settings import replay_settings
from outbox_operator.settings import OperatorSettings


def build_replay_config(
    replay: OutboxReplay, relay: OutboxRelay, operator: OperatorSettings
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
