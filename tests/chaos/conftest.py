"""
What a run of chaos reports: each failure as soon as its case ends, since a whole run takes long;
and at the end how many cases there were, and how long they took.
"""

from collections.abc import Callable

import pytest

from chaos.cases import AT_ONCE, Played, report_of

PLAYED = pytest.StashKey[list[Played]]()


@pytest.fixture
def note_played(pytestconfig: pytest.Config) -> Callable[[Played], None]:
    """Called with each case when it has ended."""
    played = pytestconfig.stash.setdefault(PLAYED, [])
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def note(case: Played) -> None:
        played.append(case)
        if case.failure:
            with capture.global_and_fixture_disabled():
                print(f"\nFAILED {report_of(case)}", flush=True)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    played = terminalreporter.config.stash.get(PLAYED, [])
    if played:
        failed = sum(bool(p.failure) for p in played)
        spent = sum(p.seconds for p in played)
        terminalreporter.section("chaos")
        terminalreporter.write_line(
            f"{len(played)} cases, {failed} failed; {spent:.0f} s, {AT_ONCE} at once"
        )
