"""What the documentation promises for servers that are not a plain primary: a pooler, a standby."""

from collections.abc import Iterator

import pytest

from dev.services import PgBouncer, Postgres, scratch, wait_until
from fixtures.cli import Cli
from fixtures.relays import StartRelay
from outbox_core.store.migrate import KNOWN, migrate

pytestmark = pytest.mark.pg


def test_a_migration_works_through_pgbouncer_in_transaction_mode(
    empty_database: str, pgbouncer: PgBouncer
) -> None:
    pooled = pgbouncer.dsn(empty_database.rpartition("/")[2])
    assert migrate(pooled).after == KNOWN
    assert migrate(pooled).applied == []


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary with a migrated database `shop`, and its standby."""
    with scratch() as folder, Postgres(folder / "primary") as primary:
        migrate(primary.create_database("shop"))
        with primary.standby(folder / "standby") as standby:
            yield primary, standby


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def test_a_standby_can_be_inspected_and_check_reports_it(
    pair: tuple[Postgres, Postgres], look: Cli
) -> None:
    standby = pair[1].dsn("shop")
    for command in ("list", "dead", "stuck", "counts", "relays", "audit", "replays"):
        look(command, "--dsn", standby)
    said = look("check", "--dsn", standby, code=1)
    assert "fail  writable: this server is a standby" in said
    assert "target_session_attrs=read-write" in said


def test_a_standby_is_recognised_and_waited_for(
    pair: tuple[Postgres, Postgres], start_relay: StartRelay
) -> None:
    standby = pair[1].dsn("shop")
    assert migrate(standby).applied == []  # there is nothing to do, so nothing is wrong
    relay = start_relay(standby, kafka={"bootstrapServers": "127.0.0.1:1", "topic": "t"})
    wait_until(
        lambda: relay.status()["reasons"].get("store") == "StoreReadOnly", 30, "it is reported"
    )
    assert relay.running
    assert relay.stop() == 0


def test_of_several_hosts_the_primary_is_found(pair: tuple[Postgres, Postgres]) -> None:
    primary, standby = pair
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
    dsn = f"postgresql://postgres@{hosts}/shop?target_session_attrs=read-write"
    assert migrate(dsn).after == KNOWN
