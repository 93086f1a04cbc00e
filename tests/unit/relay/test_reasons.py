"""Reasons and termination messages: how a failure is reported to machines."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox_core import errors
from outbox_core.contract.reasons import (
    LONGEST_MESSAGE_CHARS,
    REASON_OF,
    ProcessReason,
    TerminationMessage,
    reason_of,
)
from outbox_core.errors import OutboxError, SchemaTooNew, SettingsError, WrongPassword
from outbox_relay.cli import serve
from outbox_relay.cli.main import main

KUBERNETES_KEEPS = 4096


def all_errors(kind: type[OutboxError] = OutboxError) -> Iterator[type[OutboxError]]:
    for below in kind.__subclasses__():
        yield below
        yield from all_errors(below)


def test_every_error_has_a_reason_of_its_own() -> None:
    ours = [kind for kind in all_errors() if kind.__module__ == errors.__name__]
    assert set(ours) == set(REASON_OF)
    assert len({REASON_OF[kind] for kind in ours}) == len(ours)


def test_an_error_without_a_reason_has_that_of_the_one_above_it() -> None:
    class Stranger(WrongPassword):
        pass

    assert reason_of(Stranger("x")) is ProcessReason.WRONG_PASSWORD
    assert reason_of(RuntimeError("x")) is ProcessReason.DEFECT
    assert (
        reason_of(RuntimeError("x"), ProcessReason.BROKER_UNREACHABLE)
        is ProcessReason.BROKER_UNREACHABLE
    )


# What it contains ---------------------------------------------------------------------------


def test_a_termination_message_is_one_line_however_many_the_error_has() -> None:
    words = TerminationMessage.about(
        SettingsError("relay.yaml:\n  lease: too short\n  name: missing")
    )
    assert words.message == "relay.yaml:; lease: too short; name: missing"
    assert words.reason == "SettingsInvalid"


def test_a_long_termination_message_fits_and_is_still_json() -> None:
    line = TerminationMessage.about(SettingsError("ü" * 100_000)).model_dump_json()
    assert len(line.encode()) < KUBERNETES_KEEPS
    assert json.loads(line)["message"].endswith("…")
    assert len(json.loads(line)["message"]) == LONGEST_MESSAGE_CHARS


def test_a_termination_message_has_no_secrets() -> None:
    text = "no way to postgresql://relay:hunter2@db/shop, password=hunter2"
    assert "hunter2" not in TerminationMessage.about(SettingsError(text)).message


def test_a_termination_message_of_a_newer_version_can_be_read() -> None:
    said = TerminationMessage.about(SchemaTooNew("use a newer one"))
    assert TerminationMessage.read(said.model_dump_json()) == said
    newer = TerminationMessage.read(
        '{"reason": "MoonInTheWay", "message": "wait", "until": "morning"}'
    )
    assert newer is not None
    assert newer.reason == "MoonInTheWay"


@pytest.mark.parametrize("text", ["", "Killed", "[]", '{"reason": "x"}', "exec: no such file\n"])
def test_what_other_programs_write_is_not_taken_for_a_termination_message(text: str) -> None:
    assert TerminationMessage.read(text) is None


# Where it is written ------------------------------------------------------------------------


@pytest.fixture
def termination_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As the kubelet makes it: there, and empty."""
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setenv("OUTBOX_TERMINATION_LOG", str(log))
    monkeypatch.delenv("OUTBOX_DSN", raising=False)
    return log


def test_a_process_that_fails_reports_why(termination_log: Path, tmp_path: Path) -> None:
    termination_log.write_text("an earlier message, longer than the one that comes now" * 50)
    assert main(["run", "--config", str(tmp_path / "missing.yaml")]) == 1
    words = TerminationMessage.read(termination_log.read_text())
    assert words is not None
    assert (words.reason, "No such file" in words.message) == ("SettingsInvalid", True)
    assert termination_log.read_text().count("\n") == 1


def test_a_wrong_command_line_is_a_wrong_setting(termination_log: Path) -> None:
    assert main(["migrate"]) == 2
    words = TerminationMessage.read(termination_log.read_text())
    assert words is not None
    assert (words.reason, "--dsn" in words.message) == ("SettingsInvalid", True)


def test_a_defect_is_reported_too_and_still_has_its_stack_trace(
    termination_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(**_: object) -> None:
        raise ZeroDivisionError("password=hunter2")

    monkeypatch.setattr(serve.reap, "callback", command)
    with pytest.raises(ZeroDivisionError):
        main(["reap", "--config", "x"])
    words = TerminationMessage.read(termination_log.read_text())
    assert words is not None
    assert words.reason == "Defect"
    assert "ZeroDivisionError" in words.message
    assert "hunter2" not in words.message


def test_a_command_beside_a_containers_main_process_writes_no_termination_message(
    termination_log: Path, tmp_path: Path
) -> None:
    assert main(["validate", "--config", str(tmp_path / "missing.yaml")]) == 1
    assert main(["list"]) == 2
    assert main(["run", "--help"]) == 0
    assert termination_log.read_text() == ""


def test_a_missing_termination_log_is_not_created(
    termination_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    termination_log.unlink()
    assert main(["run", "--config", str(tmp_path / "missing.yaml")]) == 1
    assert not termination_log.exists()
    assert "No such file" in capsys.readouterr().err
