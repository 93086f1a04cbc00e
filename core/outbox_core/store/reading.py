"""
Reading: one READ ONLY snapshot, and rows with the names of the JSON output.

Used by `store.inspect` and by every statement that answers a person's question. The database
enforces that nothing is written, so it works with the role outbox_reader, on a standby, and while
no relay is running.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from psycopg import DataError, sql
from psycopg import errors as pg
from psycopg.abc import Buffer
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader

from outbox_core.errors import RequestRefused, StoreError
from outbox_core.store.connection import Connection, translated

Row = dict[str, Any]
"""Keys are the names that the JSON output has."""

FOREVER = datetime.max.replace(tzinfo=UTC)
LONG_AGO = datetime.min.replace(tzinfo=UTC)

# By index, in its order: the statistics may be older than the last ten million rows, and then a
# plan that reads a whole table looks cheap. JIT is off because of the costs that this causes.
SET_UP = """
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
    SET LOCAL statement_timeout = {timeout};
    SET LOCAL enable_seqscan = {planner};
    SET LOCAL enable_bitmapscan = {planner};
    SET LOCAL enable_hashjoin = {planner};
    SET LOCAL enable_mergejoin = {planner};
    SET LOCAL jit = off
"""


@contextmanager
def reading(conn: Connection, timeout: float = 30, whole_tables: bool = False) -> Iterator[None]:
    """One read-only snapshot, in which nothing takes longer than `timeout` seconds."""
    conn.adapters.register_loader("timestamptz", AnyTimeLoader)
    planner = "on" if whole_tables else "off"
    with translated():
        try:
            with conn.transaction():
                conn.execute(SET_UP.format(timeout=round(timeout * 1000), planner=planner))
                yield
        except pg.QueryCanceled as error:
            raise StoreError(
                f"the database needed more than {timeout:g} s: narrow it down (a time range, "
                "--state, --key, --correlation, a smaller --limit), or allow more with --timeout"
            ) from error


class AnyTimeLoader(TimestamptzLoader):
    """`infinity` is a valid available_at, but not a datetime."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except DataError:
            text = bytes(data)
            return LONG_AGO if text.startswith(b"-") or text.endswith(b"BC") else FOREVER


def fetch(
    conn: Connection, query: str | sql.Composed, values: Mapping[str, object] | None = None
) -> list[Row]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, values).fetchall()


THE_RELAYS = """
    unnest(%(relay_ids)s::integer[], %(relay_names)s::text[], %(relay_orderings)s::text[])
        AS r (id, name, ordering)
"""
"""The relays of a query, as values: so the planner does not have to estimate them."""


def the_relays(conn: Connection, name: str | None = None) -> dict[str, list[Any]]:
    """Values for THE_RELAYS: all, or one by name."""
    found = fetch(conn, "SELECT id, name, ordering FROM outbox.relay ORDER BY name")
    chosen = [r for r in found if name in (None, r["name"])]
    if name is not None and not chosen:
        known = ", ".join(r["name"] for r in found)
        raise RequestRefused(
            f"there is no relay {name!r}; "
            + (f"there are: {known}" if known else "none has registered yet")
        )
    return {
        "relay_ids": [r["id"] for r in chosen],
        "relay_names": [r["name"] for r in chosen],
        "relay_orderings": [r["ordering"] for r in chosen],
    }


def clock(conn: Connection) -> datetime:
    """Now, by the database's clock, like every time in the outbox."""
    now = fetch(conn, "SELECT clock_timestamp() AS now")[0]["now"]
    assert isinstance(now, datetime)
    return now
