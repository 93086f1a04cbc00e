"""docs/conformance.md is current, and no verdict in it is better than the tests."""

from pathlib import Path

import pytest

from dev.reference.conformance import (
    PAGE,
    ByStatement,
    NamedTest,
    Section,
    Statement,
    faults,
    ids_in,
    page,
    read_sections,
    read_tests,
)


@pytest.fixture(scope="module")
def named_tests() -> ByStatement:
    return read_tests()


def test_the_page_is_current(named_tests: ByStatement) -> None:
    assert PAGE.read_text() == page(read_sections(), named_tests), "make docs"


def test_verdicts_and_tests_go_together(named_tests: ByStatement) -> None:
    assert list(faults(read_sections(), named_tests)) == []


def test_every_test_with_an_id_is_marked(request: pytest.FixtureRequest) -> None:
    marked = [item for item in request.session.items if item.get_closest_marker("spec")]
    named = [item for item in request.session.items if ids_in(item.name.partition("[")[0])]
    assert marked == named


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_em_02_a_second_event_is_refused", ["EM-02"]),
        ("test_lc_22_em_50_several_processes", ["LC-22", "EM-50"]),
        ("test_an_item_42_is_no_statement", []),
        ("test_tc_123_is_no_statement", []),
        ("test_a_choice_04", []),
    ],
)
def test_ids_are_read_from_a_name(name: str, ids: list[str]) -> None:
    assert ids_in(name) == ids


@pytest.mark.parametrize(
    ("statement", "tested", "words"),
    [
        (Statement("EM-01", "MUST", "x", "held"), True, []),
        (Statement("EM-01", "MUST", "x", "held"), False, ["EM-01 is held, but no test"]),
        (Statement("EM-01", "MUST", "x", "partly", "y"), False, ["EM-01 is partly, but no test"]),
        (Statement("EM-01", "MUST", "x", "not yet", "y"), False, []),
        (Statement("EM-01", "MUST", "x", "not yet", "y"), True, ["EM-01 is not yet, but test_a"]),
        (Statement("EM-01", "MUST", "x", "partly"), True, ["EM-01 is partly: a reason"]),
        (Statement("EM-01", "OUGHT", "x", "held"), True, ["no level OUGHT"]),
        (Statement("EM-01", "MUST", "x", "fine", "y"), False, ["no verdict fine"]),
        (Statement("EM-02", "MUST", "x", "held"), True, ["EM-01 is not listed", "EM-02 is held"]),
    ],
)
def test_a_fault_is_found(statement: Statement, tested: bool, words: list[str]) -> None:
    tests = {"EM-01": [NamedTest("test_x.py", "test_a")]} if tested else {}
    found = list(faults([Section("s", "t", [statement])], tests))
    assert len(found) == len(words)
    assert all(part in text for part, text in zip(words, found, strict=True))


def test_a_statement_that_is_listed_twice_is_a_fault() -> None:
    twice = [Statement("EM-01", "MUST", "x", "not", "y")] * 2
    assert list(faults([Section("s", "t", twice)], {})) == ["EM-01 is listed 2 times"]


def test_only_what_pytest_collects_counts_as_a_test(tmp_path: Path) -> None:
    (tmp_path / "contract.py").write_text(
        "class Kept:\n    def test_em_01_a(self): ...\n"
        "class Forgotten:\n    def test_em_02_b(self): ...\n"
        "def test_em_03_c(): ...\n"
    )
    (tmp_path / "test_it.py").write_text(
        "class TestIt(Kept): ...\n"
        "def test_em_04_d():\n    def test_em_05_inner(): ...\n"
        "def em_06_helper(): ...\n"
    )
    assert read_tests(tmp_path) == {
        "EM-01": [NamedTest("contract.py", "test_em_01_a")],
        "EM-04": [NamedTest("test_it.py", "test_em_04_d")],
    }
