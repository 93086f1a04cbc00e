"""The rules of OutboxReplay in CEL: see `shared.rules`."""

from outbox_core.contract.selection import Range, Selection
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
        Rule("has(self.after) || has(self.before)", "name at least one of after and before"),
        Rule(
            "!has(self.after) || !has(self.before) || self.after < self.before",
            "after must be earlier than before: nothing lies between",
        ),
    ),
    Selection: (
        Rule(
            "!has(self.published) || (has(self.states) && 'PUBLISHED' in self.states)",
            "published needs states: [PUBLISHED]: nothing else was published",
        ),
        Rule(
            "!has(self.states) || !('PUBLISHED' in self.states) || "
            + " || ".join(f"has(self.{other})" for other in OTHERS),
            "PUBLISHED alone is everything that ever went out: narrow it, for example by created "
            'or eventTypes; eventTypes: ["*"] if you mean everything',
        ),
    ),
    ReplaySpec: (
        Rule(
            "self.action != 'Backfill' || (!has(self.select.states) && "
            "!has(self.select.published) && !has(self.select.errorMatches))",
            "Backfill takes events that the relay never had, so they have no state: remove "
            "select.states, select.published and select.errorMatches",
        ),
        Rule(
            f"!has(self.sparkConf) || self.sparkConf.all(key, !key.matches(r'{POD_KEYS}'))",
            POD_KEYS_REFUSED,
        ),
    ),
}
