"""What the tests of the store share."""

import pytest

from fixtures.cli import Cli
from fixtures.outbox import Outbox


@pytest.fixture
def cli(outbox: Outbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """With the database known from the environment."""
    monkeypatch.setenv("OUTBOX_DSN", outbox.dsn)
    return Cli(capsys)
