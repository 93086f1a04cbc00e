"""What can be wrong around a relay ends in a condition that names the cure, and then recovers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fixtures import workloads
from fixtures.cluster import Manifest
from fixtures.shop import Shop

NEWER = "INSERT INTO outbox.schema_version (version, name, checksum) VALUES (9999, 'newer', '')"


class Situation(NamedTuple):
    reason: str
    names: str
    spec: Manifest
    cure: Callable[[Shop], None]
    prepare: Callable[[Shop], None] = lambda _: None


def reads(secret: str, key: str = "dsn") -> dict[str, Any]:
    return {"store": {"postgresql": {"dsnSecretRef": {"name": secret, "key": key}}}}


def secret(shop: Shop, name: str, dsn: str, key: str = "dsn") -> None:
    made = workloads.store_secret()
    shop.namespace.apply({**made, "metadata": {"name": name}, "stringData": {key: dsn}})


def good(shop: Shop) -> str:
    return shop.backends.dsn(shop.database)


SITUATIONS = {
    "no-secret": Situation(
        "SecretMissing",
        "Secret absent",
        reads("absent"),
        cure=lambda shop: secret(shop, "absent", good(shop)),
    ),
    "no-key": Situation(
        "SecretMalformed",
        "dsn",
        reads("keyless"),
        prepare=lambda shop: secret(shop, "keyless", good(shop), key="url"),
        cure=lambda shop: secret(shop, "keyless", good(shop)),
    ),
    "bad-dsn": Situation(
        "SettingsInvalid",
        "postgresql://",
        reads("nonsense"),
        prepare=lambda shop: secret(shop, "nonsense", "no connection string"),
        cure=lambda shop: secret(shop, "nonsense", good(shop)),
    ),
    "bad-password": Situation(
        "WrongPassword",
        "password",
        reads("wrong"),
        prepare=lambda shop: secret(
            shop, "wrong", shop.backends.dsn(shop.database, password="guessed")
        ),
        cure=lambda shop: secret(shop, "wrong", good(shop)),
    ),
    "no-image": Situation(
        "ImageNotPulled",
        "spec.pod.image",
        {"pod": {"image": "outbox-relay:of-nowhere", "imagePullPolicy": "Never"}},
        cure=lambda shop: shop.patch({"pod": None}, "no-image"),
    ),
}


def test_what_a_resource_refers_to_is_wrong_and_is_corrected(shop: Shop) -> None:
    for name, situation in SITUATIONS.items():
        situation.prepare(shop)
        shop.apply(name, **situation.spec)
    for name, situation in SITUATIONS.items():
        found = shop.wait_condition("Degraded", "True", situation.reason, name=name)
        assert situation.names in found["message"], found
        assert "guessed" not in found["message"]
        not_ready = shop.wait_condition("Ready", "False", situation.reason, name=name)
        assert not_ready["message"] == found["message"]
    for situation in SITUATIONS.values():
        situation.cure(shop)
    for name, situation in SITUATIONS.items():
        shop.wait_settled(name=name)
        shop.wait_condition("Degraded", "False", name=name)
        told = [reason for reason, _ in shop.events(name)]
        # On a slow machine pods may be late, which is told, too, in between.
        assert told.index(situation.reason) < told.index("Recovered"), told
        assert (told.count(situation.reason), told[-1]) == (1, "Recovered"), told


def test_a_schema_that_is_newer_is_left_alone(shop: Shop) -> None:
    shop.apply()
    shop.wait_settled()
    shop.sql(NEWER)
    shop.patch({"replicas": 2})
    found = shop.wait_condition("Degraded", "True", "SchemaTooNew")
    assert "9999" in found["message"]
    assert shop.condition("Ready")["status"] == "True"  # the old pod works on: both share it
    shop.sql("DELETE FROM outbox.schema_version WHERE version = 9999")
    shop.wait_settled(2)


def test_a_quota_that_is_exceeded_is_told(shop: Shop) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"}}
    shop.namespace.apply({**quota, "spec": {"hard": {"pods": "1"}}})
    shop.apply(replicas=2)
    found = shop.wait_condition("Degraded", "True", "PodsNotCreated")
    assert "exceeded quota: quota" in found["message"]
    shop.namespace.apply({**quota, "spec": {"hard": {"pods": "9"}}})
    shop.wait_settled(2)
    shop.wait_condition("Degraded", "False")
