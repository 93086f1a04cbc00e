"""What a producer's statement does to deliveries and unmatched events, however it inserts."""

import threading

import pytest

from dev.services import wait_until
from fixtures.outbox import Outbox

pytestmark = pytest.mark.pg

WAITING = (
    "SELECT count(*) FROM pg_locks WHERE relation = 'outbox.unmatched'::regclass AND NOT granted"
)


def test_a_relay_that_registers_while_a_statement_runs_is_offered_its_events(
    outbox: Outbox,
) -> None:
    """The insert has read the relays and waits where it records what none of them wants."""
    outbox.register("other", ["payment.*"])
    with outbox.connect() as blocker:
        blocker.execute("LOCK TABLE outbox.unmatched IN SHARE MODE")
        insert = threading.Thread(target=insert_alone, args=(outbox, "order.created"))
        insert.start()
        wait_until(lambda: outbox.value(WAITING) == 1, 30, "the insert waits")
        late = outbox.register("late", ["order.*"])
        blocker.rollback()
    insert.join()
    while outbox.value("SELECT outbox.route_unmatched(100)"):
        pass
    assert [c.event_type for c in outbox.claim(late)] == ["order.created"]
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 0


def insert_alone(outbox: Outbox, event_type: str) -> None:
    with outbox.connect(autocommit=True) as conn:
        outbox.insert(conn, event_type=event_type)


@pytest.mark.parametrize("how", ["insert", "copy"])
@pytest.mark.parametrize("everything", [False, True])
def test_each_event_of_a_statement_is_delivered_or_recorded_as_unmatched(
    outbox: Outbox, how: str, everything: bool
) -> None:
    outbox.register("orders", ["order.*"])
    outbox.register("of-a-tenant", ["*"], tenants=["t"])
    if everything:
        outbox.register("all")
    rows = [
        ("order.created", None),
        ("order.created", "t"),
        ("payment.made", "t"),
        ("payment.made", None),
        ("outbox.sentinel", None),
    ]
    with outbox.connect() as conn, conn.cursor() as cursor:
        if how == "copy":
            copying = "COPY outbox.event (event_type, tenant_id, payload) FROM STDIN"
            with cursor.copy(copying) as copy:
                for kind, tenant in rows:
                    copy.write_row((kind, tenant, b"x"))
        else:
            values = ", ".join(["(%s, %s, 'x')"] * len(rows))
            cursor.execute(
                f"INSERT INTO outbox.event (event_type, tenant_id, payload) VALUES {values}",
                [field for row in rows for field in row],
            )
        conn.commit()
    delivered = outbox.sql(
        "SELECT r.name, e.event_type, e.tenant_id FROM outbox.delivery d"
        " JOIN outbox.relay r ON r.id = d.relay_id JOIN outbox.event e USING (seq)"
    )
    wanted = {("orders", *rows[0]), ("orders", *rows[1])}
    wanted |= {("of-a-tenant", *rows[1]), ("of-a-tenant", *rows[2])}
    if everything:
        wanted |= {("all", *row) for row in rows[:4]}
    assert set(delivered) == wanted
    assert len(delivered) == len(wanted)
    unmatched = (
        "SELECT e.event_type, e.tenant_id FROM outbox.unmatched u JOIN outbox.event e USING (seq)"
    )
    assert outbox.sql(unmatched) == ([] if everything else [("payment.made", None)])


def test_without_any_relay_events_are_recorded_as_unmatched(outbox: Outbox) -> None:
    outbox.emit("order.created")
    assert outbox.sql("SELECT version FROM outbox.unmatched") == [(0,)]


def test_an_inactive_subscription_to_everything_matches_nothing(outbox: Outbox) -> None:
    outbox.register("all")
    outbox.sql("UPDATE outbox.relay SET active = false")
    outbox.emit("order.created")
    assert outbox.value("SELECT count(*) FROM outbox.unmatched") == 1
