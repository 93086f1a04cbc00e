"""
The ConfigMap: relay.yaml, under a name that its content makes.

Another content is another ConfigMap, and none is ever changed: a pod of an older revision that
starts again reads the file it had. Which of the old ones may go is decided in `decide.leftovers`.
"""

import hashlib

import yaml

from outbox_operator.children.names import Manifest, child_name, owned
from outbox_operator.resources.relay import OutboxRelay
from outbox_operator.resources.settings import settings

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""In C where it was built in: ten times faster, and an operator may have five hundred to write."""


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
