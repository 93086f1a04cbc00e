"""
Connections: how they are opened, and the one place where the driver's errors become ours.

Works behind PgBouncer in transaction mode: no session state is relied on. Prepared statements are
off because a pooler may hand the next statement to another backend; the hot statements are
functions of the schema, whose plans the backend caches itself.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outbox_core.errors import (
    DatabaseMissing,
    LoginRefused,
    PermissionDenied,
    RequestRefused,
    SchemaMissing,
    SettingsError,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    TlsFailed,
    WrongPassword,
)
from outbox_core.model.attempt import without_secrets

Connection = psycopg.Connection[tuple[Any, ...]]

UNAVAILABLE = (
    psycopg.OperationalError,  # connection refused, lost, terminated; shutting down; disk full
    pg.InterfaceError,
    pg.AdminShutdown,
    pg.CannotConnectNow,
    pg.DeadlockDetected,
    pg.QueryCanceled,  # our statement_timeout
)
# Matched by the text, because libpq has no code for a connection that was never established. If the
# server's messages are not in English, the error is StoreUnavailable, and its text shows why.
CONNECTION_FAILURES: tuple[tuple[re.Pattern[str], type[StoreUnavailable], str], ...] = (
    (
        re.compile(
            r"valid client certificate|certificate authentication failed|alert certificate required"
            r"|alert unknown ca|alert bad certificate|alert certificate expired"
        ),
        TlsFailed,
        "the server requires a client certificate for this user, signed by its CA: set "
        "store.postgresql.tls.certSecretRef and keySecretRef, or PGSSLCERT and PGSSLKEY",
    ),
    (
        re.compile(r"does not match host name|host name must be specified"),
        TlsFailed,
        "use the host name of the server's certificate in the DSN, or the mode verify-ca",
    ),
    (
        re.compile(
            r"certificate verify failed|root certificate file|could not read root certificate"
        ),
        TlsFailed,
        "set the CA that signed the server's certificate: store.postgresql.tls.caSecretRef, or "
        "PGSSLROOTCERT",
    ),
    (
        re.compile(r"server does not support SSL"),
        TlsFailed,
        "enable TLS on the server (or its pooler), or connect without it",
    ),
    (
        # Not every "SSL error": a connection that is lost over TLS is one, too.
        re.compile(r"private key file|could not (load|read|open) certificate|certificate file"),
        TlsFailed,
        "check certificate and key, and that only the owner and group can read the key",
    ),
    (
        re.compile("(password|SASL) authentication failed|no password supplied"),
        WrongPassword,
        "correct user and password in the DSN's secret; it is read again at every try. A client "
        "certificate must be issued to the same user",
    ),
    (
        re.compile(
            r"authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects|no such user"
            r'|not permitted to log in|role ".*" does not exist|permission denied for database'
        ),
        LoginRefused,
        "check the user in the DSN, and pg_hba.conf on the server, which may require TLS",
    ),
    (
        re.compile(r'database ".*" does not exist|no such database'),
        DatabaseMissing,
        "correct the database's name in the DSN, or create it",
    ),
)
# UTC, because times of any other zone, also Etc/UTC, cost the driver three times as much.
SET_SESSION = """
    SELECT set_config('statement_timeout', %s, false), set_config('TimeZone', 'UTC', false)
"""
MISSING = (pg.UndefinedTable, pg.InvalidSchemaName, pg.UndefinedFunction, pg.UndefinedColumn)


def connect(
    dsn: str,
    application: str,
    connect_timeout: float = 10,
    statement_timeout: float = 0,
) -> Connection:
    """An autocommit connection; every statement is its own transaction unless in a block."""
    refuse_malformed(dsn)
    with translated():
        conn = psycopg.connect(
            with_tls_from_environment(dsn),
            autocommit=True,
            prepare_threshold=None,
            application_name=application[:63],
            connect_timeout=max(2, round(connect_timeout)),
            # A dead peer is noticed within half a minute, even while we wait for its answer.
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=30_000,
        )
        try:
            # Behind a pooler the settings would stay with a backend that others use.
            if statement_timeout and not is_pooled(conn):
                conn.execute(SET_SESSION, (f"{round(statement_timeout * 1000)}ms",))
        except BaseException:
            conn.close()
            raise
    return conn


TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""Parameters that the operator sets by libpq's variables: PGSSLMODE, and so on."""
IGNORED_IN_A_DSN = (*TLS, "sslpassword", "requiressl", "service")


def with_tls_from_environment(dsn: str) -> str:
    """With OUTBOX_DSN_TLS=ignore, the DSN without its TLS parameters: only libpq's own variables
    (PGSSLMODE ...) count, which the operator sets from the resource. A DSN comes from a Secret that
    others may write, and its sslmode=require would override verify-full. The variables are added to
    the DSN, because a service file (PGSERVICE) would override variables too."""
    if os.environ.get("OUTBOX_DSN_TLS") != "ignore":
        return dsn
    given = {name: os.environ.get(f"PG{name.upper()}") for name in TLS}
    parts = conninfo_to_dict(dsn)
    kept = {name: parts[name] for name in parts if name not in IGNORED_IN_A_DSN}
    return make_conninfo("", **kept, **{name: value for name, value in given.items() if value})


def refuse_malformed(dsn: str) -> None:
    """The error quotes nothing of the DSN: what the driver takes for a host, a port or a database,
    and shows in its own errors, may be part of a password."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise SettingsError(
            "the DSN is malformed: write postgresql://user@host:5432/database or key=value pairs"
        ) from error
    scheme, _, rest = dsn.partition("://")
    if scheme not in ("postgresql", "postgres"):
        return
    user, at, place = rest.partition("@")
    if at and "/" not in user and "@" in place.partition("?")[0]:
        raise SettingsError("user or password in the DSN contains @: write it as %40")
    if at and "/" in user and "?" not in user:
        raise SettingsError("user or password in the DSN contains /: write it as %2F")
    if not all(p.isdecimal() for p in str(parts.get("port") or 0).split(",") if p):
        raise SettingsError("the DSN's port is not a number")


# Only sessions of our own user, which we may terminate; and only those that wait for their client,
# so no running statement is cut short. No server timeout covers a client that stopped inside a
# pipeline.
END_FROZEN = """
    SELECT pg_terminate_backend(a.pid, 1000) FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.usename = current_user
       AND a.pid <> pg_backend_pid() AND starts_with(a.application_name, %s)
       AND a.wait_event_type = 'Client' AND a.backend_xid IS NOT NULL
       AND a.xact_start < now() - %s::interval
"""


def relay_application(relay: str, purpose: str = "") -> str:
    """The name of a relay's sessions in pg_stat_activity; without a purpose, their prefix."""
    return f"outbox-relay {relay} {purpose}"[:63]


def end_frozen(conn: Connection, relay: str, longer_than: timedelta) -> int:
    """
    End sessions of the relay whose client stopped in the middle of a transaction; return how many.

    A process that is frozen, or whose node is gone, keeps the rows locked that it was writing:
    nobody else could take them over until it wakes up.
    """
    with translated():
        rows = conn.execute(END_FROZEN, (relay_application(relay), longer_than)).fetchall()
    return sum(bool(ended) for (ended,) in rows)


@contextmanager
def translated() -> Iterator[None]:
    """Translate the driver's errors to ours, without anything that looks like a credential."""
    try:
        yield
    except MISSING as error:
        raise SchemaMissing(
            "the outbox schema is missing or older than this program "
            f"({first_line(error)}): run `outbox-relay migrate`"
        ) from error
    except pg.InsufficientPrivilege as error:
        raise PermissionDenied(
            f"the database user lacks a right ({first_line(error)}): "
            "grant it the role outbox_relay, or outbox_reader for inspection"
        ) from error
    except pg.ReadOnlySqlTransaction as error:
        raise StoreReadOnly(
            f"PostgreSQL: {first_line(error)}; a standby, or a failover that has not ended; "
            "target_session_attrs=read-write in the DSN finds the primary"
        ) from error
    except UNAVAILABLE as error:
        raise unavailable(error) from error
    except (pg.RestrictViolation, pg.CheckViolation) as error:
        hint = error.diag.message_hint
        raise RequestRefused(first_line(error) + (f" ({hint})" if hint else "")) from error
    except psycopg.Error as error:
        raise StoreError(f"PostgreSQL: {first_line(error)}") from error


def unavailable(error: psycopg.Error) -> StoreUnavailable:
    for text, kind, cure in CONNECTION_FAILURES:
        if text.search(str(error)):
            return kind(f"PostgreSQL: {first_line(error)}; {cure}")
    return StoreUnavailable(f"PostgreSQL: {first_line(error)}")


def first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    return without_secrets(text.splitlines()[0])


LISTEN = "LISTEN outbox"


def listen(conn: Connection) -> None:
    """Receive the notifications of commits. Needs a direct connection, not one of a pooler."""
    with translated():
        conn.execute(LISTEN)


def is_pooled(conn: Connection) -> bool:
    """Is there a pooler in between? Then the process id of the connection is not the backend's."""
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != conn.info.backend_pid
