"""The command line itself: how it ends, what it prints, what it needs to start."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from outbox_core.errors import SettingsError
from outbox_relay.cli import serve
from outbox_relay.cli.main import SECTIONS, cli, main
from outbox_relay.cli.options import as_duration, as_time, as_time_or_age

CONFIG = "name: orders\npublisher: {kafka: {bootstrapServers: 'localhost:9092'}}\n"
CONTEXT = click.Context(cli)
OPTION = click.Option(["--x"])


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTBOX_DSN", raising=False)


def test_every_command_is_in_the_help_and_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for command in (c for section in SECTIONS.values() for c in section):
        assert command.name
        assert f"  {command.name} " in overview
        assert main([command.name, "--help"]) == 0
        assert "Usage:" in capsys.readouterr().out


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("outbox-relay, version ")


@pytest.mark.parametrize(
    "args", [["nonsense"], ["list", "--state", "LOST"], ["show", "not-a-uuid"], ["list"], ["run"]]
)
def test_a_wrong_command_line_ends_with_2(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    assert "Error" in capsys.readouterr().err


def test_an_error_with_a_cure_is_one_line_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "--config", str(tmp_path / "missing.yaml")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "No such file" in err


def test_a_malformed_dsn_is_not_echoed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--dsn", "postgresql://u:hunter2@[x/y"]) == 1
    assert "hunter2" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("raised", "code"), [(SettingsError("no"), 1), (KeyboardInterrupt(), 130), (click.Abort(), 130)]
)
def test_how_a_command_ends(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(**_: object) -> None:
        raise raised

    monkeypatch.setattr(serve.validate, "callback", command)
    assert main(["validate", "--config", "x"]) == code


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    script = (
        "import sys, click\n"
        "from outbox_relay.cli import main as m, serve\n"
        "serve.validate.callback = lambda **_: [click.echo('x' * 1000) for _ in range(1000)]\n"
        "sys.exit(m.main(['validate', '--config', 'x']))\n"
    )
    run = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -c "$1" | head -n 1', sys.executable, script],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert run.stderr == b""


def test_a_good_config_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text(CONFIG)
    assert main(["validate", "--config", str(file)]) == 0
    assert "orders" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("topic: 'orders.{colour}'", "no field {colour}"),
        ("topic: orders/paid", "does not make a legal topic: it may have 1 to 249"),
        ("topic: orders, config: {acks: '1'}", "acks cannot be set"),
    ],
)
def test_a_config_that_the_publisher_would_refuse_is_not_valid(
    line: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text(
        "name: orders\nstore: {dsn: {env: DSN}}\n"
        f"publisher: {{kafka: {{bootstrapServers: 'kafka:9092', {line}}}}}\n"
    )
    assert main(["validate", "--config", str(file)]) == 1
    assert complaint in capsys.readouterr().err


def test_the_brokers_client_is_not_imported_to_inspect() -> None:
    script = (
        "import sys; from outbox_relay.cli.main import main; main(['list', '--help']);"
        "sys.exit('confluent_kafka' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert run.returncode == 0


def test_the_dsn_comes_from_option_file_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outbox_relay.cli.options import source_of

    file = tmp_path / "relay.yaml"
    file.write_text(CONFIG + "store: {dsn: {env: OTHER_DSN}}\n")
    monkeypatch.setenv("OUTBOX_DSN", "from environment")
    monkeypatch.setenv("OTHER_DSN", "from file")
    assert source_of(None, None).dsn == "from environment"
    assert source_of(None, file).dsn == "from file"
    assert source_of("given", file).dsn == "given"


def test_times_are_iso_8601_or_how_long_ago() -> None:
    when = as_time_or_age(CONTEXT, OPTION, "2026-01-31T08:00:00")
    assert when == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert as_time(CONTEXT, OPTION, "2026-01-31T09:00:00+01:00") == when
    assert as_time_or_age(CONTEXT, OPTION, "1h30m") == timedelta(minutes=90)
    assert as_duration(CONTEXT, OPTION, None) is None
    for wrong in ("yesterday", "5", ""):
        with pytest.raises(click.BadParameter, match="2026-01-31T08:00:00Z"):
            as_time_or_age(CONTEXT, OPTION, wrong)
    with pytest.raises(click.BadParameter):
        as_time(CONTEXT, OPTION, "2h")
