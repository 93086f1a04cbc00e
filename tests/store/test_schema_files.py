"""The files of the schema: numbered without a gap, and as they were released."""

from typing import Any

import pytest

from outbox_core.schema.files import (
    KNOWN,
    Release,
    code,
    migrations,
    releases,
    this_release,
)


def changed_since(release: Release) -> list[str]:
    """What is no longer as it was released, and had to get a number of its own."""
    checksums = {m.version: m.checksum for m in migrations()}
    found = []
    if checksums.get(release.version) != release.checksum:
        found.append(f"migration {release.version}")
    if release.version == KNOWN:
        found += [part.name for part in code() if release.code.get(part.name) != part.digest]
    return found


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [m.version for m in migrations()] == list(range(1, KNOWN + 1))


def test_what_was_released_has_not_changed_under_its_number() -> None:
    """A migration is never edited; a change of functions or triggers brings a new migration."""
    for release in releases():
        assert (release.version, changed_since(release)) == (release.version, [])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"checksum": "x"}, [f"migration {KNOWN}"]),
        ({"version": KNOWN + 1}, [f"migration {KNOWN + 1}"]),
        ({"code": {"functions": "x"}}, ["functions", "triggers"]),
    ],
)
def test_such_a_change_would_be_found(change: dict[str, Any], found: list[str]) -> None:
    (release,) = releases(f"# a remark\n{this_release()}\n")
    assert changed_since(release._replace(**change)) == found
