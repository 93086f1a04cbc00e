"""What a run of chaos says at its end: how many cases, and how long they took."""

import pytest

from chaos.cases import AT_ONCE, Played

PLAYED = pytest.StashKey[list[Played]]()


@pytest.fixture
def played(pytestconfig: pytest.Config) -> list[Played]:
    """To be extended by whoever plays."""
    return pytestconfig.stash.setdefault(PLAYED, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    played = terminalreporter.config.stash.get(PLAYED, [])
    if played:
        failed = sum(bool(p.failure) for p in played)
        spent = sum(p.seconds for p in played)
        terminalreporter.section("chaos")
        terminalreporter.write_line(
            f"{len(played)} cases, {failed} failed; {spent:.0f} s, {AT_ONCE} at once"
        )
