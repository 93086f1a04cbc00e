"""The table of statements is complete: all scenes are played without a fault, and recorded."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from chaos.cases import AT_ONCE, Case, play
from chaos.scenes import SCENES
from chaos.statements import TABLE, Statement, unknown
from dev.services import Postgres
from fixtures.losing import Plan
from fixtures.wire import Trip

pytestmark = [pytest.mark.pg, pytest.mark.slow]


def recording_of(statement: Statement) -> str:
    """A name of what must be played to see it: its scene, and what is lost first."""
    return " ".join(
        [statement.scene, *(str(p.loss) for p in statement.preludes()), statement.after]
    )


def recordings() -> list[Case]:
    """Every scene; and those with a first loss, because recovery has statements of its own."""
    after_a_loss = {recording_of(s): s for s in TABLE if s.after}
    return [
        *(Case(f"{scene} ", scene, o, 3, Plan) for scene, o in product(SCENES, ("None", "Key"))),
        *(
            Case(name, s.scene, ordering, 1, lambda s=s: Plan(s.preludes()))  # type: ignore[misc]
            for name, s in after_a_loss.items()
            for ordering in s.orderings
        ),
    ]


def test_every_statement_that_is_sent_is_in_the_table_and_the_other_way_round(
    postgres: Postgres, migrated_template: str
) -> None:
    cases = recordings()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        recorded = pool.map(lambda case: play(case, postgres, migrated_template), cases)
        sent: dict[str, list[Trip]] = {}
        for case, trips in zip(cases, recorded, strict=True):
            sent.setdefault(case.name, []).extend(trips)
    forgotten = unknown([trip for trips in sent.values() for trip in trips])
    assert not forgotten, "not in the table:\n" + "\n".join(map(str, forgotten))
    gone = [
        statement.name
        for statement in TABLE
        if statement.losses and not any(map(statement.matches, sent[recording_of(statement)]))
    ]
    assert not gone, f"in the table, and not sent in their scene: {gone}"
