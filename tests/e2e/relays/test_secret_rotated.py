"""The database's credentials change: pods are renewed with the new ones, and events go on."""

from fixtures.shop import Shop

EVENTS = 3000


def test_new_credentials_in_the_secret_reach_the_pods(shop: Shop) -> None:
    old, new = f"{shop.database}_old", f"{shop.database}_new"
    shop.sql(f"CREATE ROLE {old} SUPERUSER LOGIN PASSWORD '{old}'")
    shop.rotate(shop.backends.dsn(shop.database, old, old))
    shop.apply(replicas=2, ordering="Key")
    shop.wait_settled(2)
    pods = shop.relay_pods()
    assert users(shop) == [old]
    emitting = shop.emit(EVENTS, seconds=10)
    shop.wait_published(1)

    shop.sql(f"CREATE ROLE {new} LOGIN IN ROLE outbox_relay PASSWORD '{new}'")
    shop.rotate(shop.backends.dsn(shop.database, new, new))
    shop.namespace.wait(lambda: not shop.relay_pods() & pods, 150, "other pods")
    shop.wait_settled(2)
    shop.namespace.wait(lambda: users(shop) == [new], 60, "nobody with the old password")
    shop.sql(f"ALTER ROLE {old} NOLOGIN")

    shop.finish(emitting, 60)
    arrived = shop.arrived(EVENTS)
    assert arrived["missing"] == arrived["disorder"] == 0
    assert shop.restarts() == 0
    assert shop.condition("Degraded")["status"] == "False"


def users(shop: Shop) -> list[str]:
    """Who the relays are to the database."""
    return shop.sql(
        "SELECT DISTINCT usename FROM pg_stat_activity"
        f" WHERE datname = '{shop.database}' AND application_name LIKE 'outbox-relay %'"
    )
