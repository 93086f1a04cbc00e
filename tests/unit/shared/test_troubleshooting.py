"""docs/troubleshooting.md knows every word that a condition may say, and no other."""

import re
from pathlib import Path

from outbox_core.contract.reasons import ProcessReason as RelayReason
from outbox_operator.kinds import CUSTOM_KINDS
from outbox_operator.shared.reasons import Reason

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "troubleshooting.md").read_text()


def words_of(first_column: str) -> set[str]:
    """Of the tables that begin with this column: what is explained in it, all columns filled."""
    words: set[str] = set()
    for table in re.findall(rf"^\| {first_column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M):
        for row in table.splitlines():
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            assert all(cells), row
            words |= set(re.findall(r"`(\w+)`", cells[0]))
    return words


def test_every_reason_has_its_meaning_and_cure() -> None:
    assert words_of("reason") == {*map(str, Reason), *map(str, RelayReason)}


def test_every_condition_is_explained() -> None:
    every = {str(c) for kind in CUSTOM_KINDS.values() for c in kind.conditions}
    assert words_of("condition") == every
