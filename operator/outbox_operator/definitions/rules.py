"""
All rules of all kinds in CEL, the API server's language, by model.

Used by `schema`. Rules are written in `shared.rules` and in the `spec.rules` of each kind.
"""

from outbox_operator.relay.spec import rules as relay_rules
from outbox_operator.replay.spec import rules as replay_rules
from outbox_operator.shared import rules as shared_rules
from outbox_operator.shared.rules import Immutable, Rules

RULES: Rules = {**shared_rules.RULES, **relay_rules.RULES, **replay_rules.RULES}
IMMUTABLE: Immutable = {**relay_rules.IMMUTABLE, **replay_rules.IMMUTABLE}
