"""The deduplicating consumer of the examples, on a real database."""

import importlib.util
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

pytestmark = pytest.mark.pg

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "dedup_consumer.py"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_tc_20_with_the_example_a_duplicate_has_its_effect_once(empty_database: str) -> None:
    example = module(EXAMPLE)
    event_id = "9b81f4e0-5e03-4270-91b4-7c7a7c68a6e6"
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(example.TABLES)

        def effect() -> None:
            conn.execute(example.COUNT, ("order.created",))

        def crash() -> None:
            effect()
            raise RuntimeError("killed in the middle")

        with pytest.raises(RuntimeError):
            example.once(conn, event_id, crash)
        assert example.once(conn, event_id, effect)  # nothing is left of the crash
        assert not example.once(conn, event_id, effect)
        assert conn.execute("SELECT events FROM event_count").fetchone() == (1,)
