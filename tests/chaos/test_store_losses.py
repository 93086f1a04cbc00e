"""
The connection to the database is lost at every statement, before and after the server's commit.

After each case nothing is lost, nothing is stuck for longer than two leases, order within a key is
kept, duplicates stay within one batch, and what each process believes agrees with the database.
How to play one case alone, or all of them: `cases`.
"""

from collections.abc import Callable

import pytest

from chaos.cases import Case, Played, chosen, play_all, report_of
from dev.services import Postgres

pytestmark = [pytest.mark.pg, pytest.mark.slow, pytest.mark.timeout(1800)]

GROUPS: dict[str, list[Case]] = {}
for case in chosen():
    GROUPS.setdefault(case.scene, []).append(case)


@pytest.mark.parametrize("scene", GROUPS)
def test_a_connection_lost_at_any_statement_changes_nothing(
    scene: str,
    postgres: Postgres,
    migrated_template: str,
    note_played: Callable[[Played], None],
) -> None:
    results = play_all(GROUPS[scene], postgres, migrated_template, note_played)
    failed = [report_of(p) for p in results if p.failure]
    if failed:
        failures = "\n\n".join(failed)
        pytest.fail(f"{len(failed)} of {len(results)} failed:\n\n{failures}", pytrace=False)
