"""
Cases: a statement, what goes wrong at which of its round trips, the ordering, how many relays.

    OUTBOX_CHAOS=all                    every case, as `make chaos`; without it a short selection
    OUTBOX_CHAOS_CASE='keeper/let go:*'  these alone, by name or pattern: as a failure prints it
    OUTBOX_CHAOS_SEED=7                 another selection, other events

Several are played at once: each waits more than it works.
"""

import os
import random
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from itertools import count, product
from typing import NamedTuple

from chaos.scenes import SCENES, flowing
from chaos.stage import Stage
from chaos.statements import ALL_LOSSES, OF_A_READ, TABLE, Statement
from dev.services import Postgres
from fixtures.losing import Loss, Plan, Point, RandomPlan
from fixtures.wire import Trip

SEED = int(os.environ.get("OUTBOX_CHAOS_SEED", "1"))
AT_ONCE = int(os.environ.get("OUTBOX_CHAOS_AT_ONCE", "6"))
RANDOM_LOSSES = 6
NUMBERS = count(1)
PROVEN = {
    "keeper/join:cut-before:1:Key:1",
    "keeper/join:cut-after:1:Key:3",
    "keeper/acquire later:cut-after:3:Key:3",
    "keeper/acquire later:late:3:Key:3",
    "keeper/let go:cut-before:1:Key:3",
    "keeper/let go:late:1:Key:3",
    "worker/fail and claim:cut-after:1:Key:1",
}
"""Each of these once left events unpublished, or out of order: they are always played."""


class Case(NamedTuple):
    name: str
    scene: str
    ordering: str
    relays: int
    plan: Callable[[], Plan]

    @property
    def seed(self) -> int:
        return zlib.crc32(f"{SEED} {self.name}".encode())


class Played(NamedTuple):
    case: Case
    seconds: float
    failure: str
    """Empty if there was none."""


def cases_of(statement: Statement) -> list[Case]:
    return [
        Case(
            f"{statement.name}:{loss}:{nth}:{ordering}:{relays}",
            statement.scene,
            ordering,
            relays,
            lambda loss=loss, nth=nth: plan_of(statement, loss, nth),  # type: ignore[misc]
        )
        for loss, nth, ordering, relays in product(
            statement.losses, statement.nth, statement.orderings, statement.relays
        )
    ]


def plan_of(statement: Statement, loss: Loss, nth: int) -> Plan:
    return Plan([*statement.preludes(), Point(statement.matches, loss, nth)])


def random_cases(how_many: int) -> list[Case]:
    """Several faults in each, anywhere."""
    return [
        Case(
            f"random-{SEED + n}:{ordering}:{relays}",
            "anywhere",
            ordering,
            relays,
            lambda n=n: RandomPlan(SEED + n, RANDOM_LOSSES),  # type: ignore[misc]
        )
        for n in range(how_many)
        for ordering, relays in product(("None", "Key"), (1, 3))
    ]


def chosen() -> list[Case]:
    """What this run plays."""
    everything = [case for statement in TABLE for case in cases_of(statement)] + random_cases(12)
    if wanted := os.environ.get("OUTBOX_CHAOS_CASE"):
        return [case for case in everything if fnmatchcase(case.name, wanted)]
    if os.environ.get("OUTBOX_CHAOS") == "all":
        return everything
    proven = [case for case in everything if case.name in PROVEN]
    assert len(proven) == len(PROVEN), "a case that once failed is not played any more"
    rng = random.Random(SEED)
    writes = [rng.choice(cases_of(s)) for s in TABLE if s.losses == ALL_LOSSES]
    reads = [rng.choice(cases_of(s)) for s in TABLE if s.losses == OF_A_READ]
    selected = [*proven, *writes, *rng.sample(reads, len(reads) // 3), *random_cases(1)]
    return list({case.name: case for case in selected}.values())


def play(case: Case, postgres: Postgres, template: str) -> list[Trip]:
    """All round trips of it."""
    name = f"chaos_{next(NUMBERS)}"
    stage = Stage(
        postgres.create_database(name, template), case.ordering, case.relays, case.plan(), case.seed
    )
    try:
        SCENES.get(case.scene, flowing)(stage)
        stage.emit()
        stage.wait_until_done()
        stage.assert_good()
    except BaseException as error:
        strikes = [f"{s.loss} at {s.trip}" for s in stage.plan.strikes] or ["no fault was met"]
        error.add_note("\n".join(strikes))
        raise
    finally:
        stage.close()
        postgres.drop_database(name)
    return stage.proxy.trips


def play_all(
    cases: Sequence[Case], postgres: Postgres, template: str, note: Callable[[Played], None]
) -> list[Played]:
    """Calls `note` with each when it has ended, in their order."""

    def one(case: Case) -> Played:
        began = time.monotonic()
        try:
            play(case, postgres, template)
        except BaseException as error:
            failure = "".join(traceback.format_exception_only(error)).strip()
            if not isinstance(error, AssertionError | TimeoutError):
                failure = traceback.format_exc()
            return Played(case, time.monotonic() - began, failure)
        return Played(case, time.monotonic() - began, "")

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="case") as pool:
        results = []
        for played in pool.map(one, cases):
            note(played)
            results.append(played)
        return results


def report_of(played: Played) -> str:
    """A failure, with how to play it alone."""
    name = played.case.name
    return (
        f"{name} (seed {SEED}, {played.seconds:.1f} s):\n{played.failure}\n"
        f"again: OUTBOX_CHAOS_SEED={SEED} OUTBOX_CHAOS_CASE='{name}' pytest tests/chaos"
    )
