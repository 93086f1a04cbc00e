"""
The ConfigMap: relay.yaml, under a name derived from its content.

New content is a new ConfigMap, and none is ever changed: a pod of an older revision that starts
again reads the same file as before. `decide.leftovers` decides which old ones may be removed.
"""

import hashlib

import yaml

from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.relay.spec.settings import settings
from outbox_operator.shared.names import Manifest, child_name, owned
from outbox_operator.shared.yaml_text import DUMPER


def build_config_map(relay: OutboxRelay) -> Manifest:
    text = yaml.dump(settings(relay), Dumper=DUMPER, sort_keys=True, allow_unicode=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned(relay, "relay", f"{child_name(relay, 'relay')}-{digest}"),
        "immutable": True,
        "data": {"relay.yaml": text},
    }
