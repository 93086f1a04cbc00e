"""Why there is no connection: recognised on a real server, each with its cure."""

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import psycopg
import pytest

from dev.services import Postgres, scratch
from outbox_core.contract.reasons import ProcessReason, reason_of
from outbox_core.errors import SettingsError, StoreUnavailable
from outbox_core.store.connection import connect
from outbox_core.store.migrate import migrate

pytestmark = pytest.mark.pg

HBA = """
host all keyed    127.0.0.1/32 scram-sha-256
host all rejected 127.0.0.1/32 reject
host all postgres,groupless,missing 127.0.0.1/32 trust
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """A server that asks who is there."""
    with scratch() as folder, Postgres(folder / "pg") as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("CREATE ROLE keyed LOGIN PASSWORD 'right'")
            conn.execute("CREATE ROLE rejected LOGIN")
            conn.execute("CREATE ROLE groupless NOLOGIN")
            conn.execute("CREATE DATABASE closed")
            conn.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
            conn.execute("CREATE DATABASE frozen")
            conn.execute("ALTER DATABASE frozen SET default_transaction_read_only = on")
            found = conn.execute("SHOW hba_file").fetchone()
            assert found is not None
            Path(found[0]).write_text(HBA)
        server.restart()
        yield server


@pytest.mark.parametrize(
    ("who", "reason", "cure"),
    [
        ("user=keyed password=wrong", ProcessReason.WRONG_PASSWORD, "read again at every try"),
        ("user=keyed", ProcessReason.WRONG_PASSWORD, "read again at every try"),
        ("user=rejected", ProcessReason.LOGIN_REFUSED, "pg_hba.conf"),
        ("user=stranger", ProcessReason.LOGIN_REFUSED, "pg_hba.conf"),
        ("user=groupless", ProcessReason.LOGIN_REFUSED, "check the user"),
        ("user=missing", ProcessReason.LOGIN_REFUSED, "check the user"),
        ("user=keyed password=right dbname=closed", ProcessReason.LOGIN_REFUSED, "check the user"),
        ("user=postgres dbname=nowhere", ProcessReason.DATABASE_MISSING, "or create it"),
        ("user=postgres port=1", ProcessReason.STORE_UNREACHABLE, "refused"),
        ("user=postgres dbname=frozen", ProcessReason.STORE_READ_ONLY, "target_session_attrs"),
    ],
)
def test_each_refused_connection_is_reported_with_its_cure(
    guarded: Postgres, who: str, reason: ProcessReason, cure: str
) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        migrate(f"host=127.0.0.1 port={guarded.port} dbname=postgres {who}")
    assert reason_of(caught.value) is reason
    assert cure in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_right_password_opens(guarded: Postgres) -> None:
    dsn = f"host=127.0.0.1 port={guarded.port} dbname=postgres user=keyed password=right"
    connect(dsn, "test").close()


@pytest.mark.parametrize(
    ("dsn", "cure"),
    [
        ("postgresql://app:secre@tTAIL@db:5432/shop", "%40"),
        ("postgres://app:secre@@tTAIL@db/shop", "%40"),
        ("postgresql://app:s@ec/tTAIL@db/shop", "%40"),
        ("postgresql://app:tTAIL/ecre@db/shop", "%2F"),
        ("postgresql://app:1234/tTAIL@db/shop", "%2F"),
        ("postgresql://app:ok@db:tTAIL/shop", "port"),
    ],
)
def test_a_password_that_spills_over_is_refused_without_showing_any_of_it(
    dsn: str, cure: str
) -> None:
    """A part of it would be taken for the host, the port or the database, and shown as such."""
    with pytest.raises(SettingsError) as caught:
        connect(dsn, "test")
    assert cure in str(caught.value)
    assert "TAIL" not in str(caught.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:a%40b%2Fc@127.0.0.1:1/shop",
        "postgresql://app:p?#@127.0.0.1:1,127.0.0.1:1/sh%40op",
        "postgresql:///shop?host=%40nowhere&application_name=a@b",
        "postgresql://127.0.0.1:1/shop?user=a@b",
        "host=127.0.0.1 port=1 user=app@corp password='a@b/c' dbname=shop",
    ],
)
def test_what_is_written_as_it_must_be_is_tried(dsn: str) -> None:
    with pytest.raises(StoreUnavailable):
        connect(dsn, "test")


def test_the_sessions_of_a_relay_are_in_utc_whatever_the_database_prefers(
    empty_database: str,
) -> None:
    name = empty_database.rpartition("/")[2]
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'".encode())
    with connect(empty_database, "relay", statement_timeout=5) as conn:
        (found,) = conn.execute("SELECT now()").fetchall()
        assert found[0].tzinfo is UTC
        assert conn.execute("SHOW statement_timeout").fetchall() == [("5s",)]
