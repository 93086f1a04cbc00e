"""The rules of OutboxReplay in CEL: see `shared.rules`."""

from outbox_core.contract.replay import NO_STATE
from outbox_core.contract.selection import (
    EMPTY_RANGE,
    NO_BOUND,
    NOT_PUBLISHED,
    TOO_WIDE,
    Range,
    Selection,
)
from outbox_operator.replay.spec.resource import POD_KEYS, POD_KEYS_REFUSED, ReplaySpec
from outbox_operator.shared.rules import Immutable, Rule, Rules

IMMUTABLE: Immutable = {
    ReplaySpec: (
        set(ReplaySpec.model_fields) - {"suspend"},
        "only suspend can be changed: create another OutboxReplay for another request",
    ),
}

OTHERS = [
    field.alias
    for name, field in Selection.model_fields.items()
    if field.alias and name != "states"
]

RULES: Rules = {
    Range: (
        Rule("has(self.after) || has(self.before)", NO_BOUND),
        Rule("!has(self.after) || !has(self.before) || self.after < self.before", EMPTY_RANGE),
    ),
    Selection: (
        Rule(
            "!has(self.published) || (has(self.states) && 'PUBLISHED' in self.states)",
            NOT_PUBLISHED,
        ),
        Rule(
            "!has(self.states) || !('PUBLISHED' in self.states) || "
            + " || ".join(f"has(self.{other})" for other in OTHERS),
            TOO_WIDE,
        ),
    ),
    ReplaySpec: (
        Rule(
            "self.action != 'Backfill' || (!has(self.select.states) && "
            "!has(self.select.published) && !has(self.select.errorMatches))",
            NO_STATE,
        ),
        Rule(
            f"!has(self.sparkConf) || self.sparkConf.all(key, !key.matches(r'{POD_KEYS}'))",
            POD_KEYS_REFUSED,
        ),
    ),
}
