"""Which parts of a DSN count if the operator configures TLS by environment variables."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from outbox_core.store.connection import with_tls_from_environment

WEAK = "postgresql://app@db/shop?sslmode=disable&sslrootcert=/mine&service=weak"


def test_a_dsn_is_unchanged_unless_the_environment_sets_tls() -> None:
    assert with_tls_from_environment(WEAK) == WEAK


def test_neither_a_dsn_nor_a_service_file_weakens_the_environments_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Said in the conninfo itself, which wins over PGSERVICE and its file."""
    monkeypatch.setenv("OUTBOX_DSN_TLS", "ignore")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", "/etc/outbox/secrets/ca.crt")
    monkeypatch.delenv("PGSSLCERT", raising=False)
    monkeypatch.delenv("PGSSLKEY", raising=False)
    assert conninfo_to_dict(with_tls_from_environment(WEAK)) == {
        "user": "app",
        "host": "db",
        "dbname": "shop",
        "sslmode": "verify-full",
        "sslrootcert": "/etc/outbox/secrets/ca.crt",
    }
