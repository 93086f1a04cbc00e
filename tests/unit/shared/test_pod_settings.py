"""TLS to the store, volumes and security contexts: the same in every pod of both kinds."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from fixtures.made_replays import around
from fixtures.made_resources import outbox_relay, outbox_replay
from fixtures.made_seen import seen
from outbox_operator.relay.children.retirement import build_retirement
from outbox_operator.relay.decide.children import decide_children, secrets_digest
from outbox_operator.relay.spec.settings import secrets
from outbox_operator.replay.decide.children import decide_replay_children
from outbox_operator.replay.decide.step import Start
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest
from outbox_operator.shared.seen import Secret
from outbox_operator.shared.store import store_secrets

STORE: dict[str, Any] = {
    "postgresql": {
        "dsnSecretRef": {"name": "shop-app", "key": "uri"},
        "tls": {
            "caSecretRef": {"name": "shop-ca", "key": "ca.crt"},
            "certSecretRef": {"name": "shop-relay", "key": "tls.crt"},
            "keySecretRef": {"name": "shop-relay", "key": "tls.key"},
        },
    }
}
FILES = {
    "PGSSLROOTCERT": ("postgresql-ca.crt", "shop-ca", "ca.crt"),
    "PGSSLCERT": ("postgresql-tls.crt", "shop-relay", "tls.crt"),
    "PGSSLKEY": ("postgresql-tls.key", "shop-relay", "tls.key"),
}
MORE: dict[str, Any] = {
    "volumes": [{"name": "more", "secret": {"secretName": "more", "defaultMode": 288}}],
    "volumeMounts": [{"name": "more", "mountPath": "/etc/more", "subPath": "a"}],
}


def pods(
    store: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    operator: OperatorSettings | None = None,
) -> Iterator[tuple[str, Manifest]]:
    """All that there are, by what they do; of a relay and of a replay of it."""
    spec: dict[str, Any] = {"pod": pod or {}}
    operator = operator or OperatorSettings()
    relay = outbox_relay(**spec, **({"store": store} if store else {}))
    for child in decide_children(relay, seen(), operator, 1).wanted:
        if child["kind"] == "Deployment":
            yield "relay", child["spec"]["template"]["spec"]
        if child["kind"] == "CronJob":
            yield "reaper", child["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    yield "retire", build_retirement(relay, operator, "orders-relay-0")["spec"]["template"]["spec"]
    replay = outbox_replay(**spec)
    engines: tuple[Any, ...] = ("Job", "SparkApplication")
    for engine in engines:
        step = Start(1, engine)
        made = decide_replay_children(replay, around(relay=relay), step, operator)
        assert made.attempt is not None
        if engine == "Job":
            yield "driver of a Job", made.attempt["spec"]["template"]["spec"]
            (config,) = [c for c in made.wanted if c["kind"] == "ConfigMap"]
            yield "executor of a Job", yaml.safe_load(config["data"]["executor.yaml"])["spec"]
        else:
            for role in ("driver", "executor"):
                yield f"{role} of Spark", made.attempt["spec"][role]["template"]["spec"]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


ROLES = [name for name, _ in pods()]


def test_every_pod_is_checked() -> None:
    assert len(ROLES) == 7
    assert [c["name"] for c in containers(dict(pods())["relay"])] == ["migrate", "relay"]


@pytest.mark.parametrize("role", ROLES)
def test_every_program_connects_to_the_store_with_tls(role: str) -> None:
    pod = dict(pods(STORE))[role]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "secrets"]
    items = {
        item["path"]: (source["secret"]["name"], item)
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    for container in containers(pod):
        env = {e["name"]: e.get("value") for e in container["env"]}
        assert (env["PGSSLMODE"], env["OUTBOX_DSN_TLS"]) == ("verify-full", "ignore")
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "secrets"]
        assert mount["readOnly"] is True
        for variable, (file, secret, key) in FILES.items():
            assert env[variable] == f"{mount['mountPath']}/{file}"
            assert (items[file][0], items[file][1]["key"]) == (secret, key)
    # libpq refuses a key that others may read, and so does nobody else's: it stays as it is.
    modes = {file: item.get("mode") for file, (_, item) in items.items()}
    assert modes == {**dict.fromkeys(modes), "postgresql-tls.key": 0o440}


@pytest.mark.parametrize("role", ROLES)
def test_without_tls_the_dsn_decides(role: str) -> None:
    pod = dict(pods())[role]
    assert "secrets" not in {v["name"] for v in pod["volumes"]}
    for container in containers(pod):
        assert not any(e["name"].startswith("PGSSL") for e in container["env"])
        assert "OUTBOX_DSN_TLS" not in {e["name"] for e in container["env"]}


@pytest.mark.parametrize(
    ("mode", "ca"), [("verify-full", "/etc/ssl/certs/ca-certificates.crt"), ("require", None)]
)
def test_without_a_ca_the_public_ones_are_trusted_where_it_matters(
    mode: str, ca: str | None
) -> None:
    store = {"postgresql": {"dsnSecretRef": {"name": "db"}, "tls": {"mode": mode}}}
    (container,) = dict(pods(store))["reaper"]["containers"]
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert (env["PGSSLMODE"], env.get("PGSSLROOTCERT")) == (mode, ca)


def test_a_renewed_certificate_renews_the_pods() -> None:
    relay = outbox_relay(store=STORE)
    assert secrets(relay) == store_secrets(relay)
    assert set(secrets(relay)) == {"shop-app", "shop-ca", "shop-relay"}
    before, after = ([Secret("shop-ca", version)] for version in ("1", "2"))
    assert secrets_digest(before) != secrets_digest(after)


def test_what_the_relays_store_needs_wins_in_the_pods_of_a_replay() -> None:
    relay = outbox_relay(store=STORE)
    replay = outbox_replay(pod={"env": [{"name": "PGSSLMODE", "value": "disable"}]})
    made = decide_replay_children(
        replay, around(relay=relay), Start(1, "Job"), OperatorSettings()
    ).attempt
    assert made is not None
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert [e["value"] for e in container["env"] if e["name"] == "PGSSLMODE"] == ["verify-full"]


@pytest.mark.parametrize("role", ROLES)
def test_more_volumes_are_in_every_container(role: str) -> None:
    pod = dict(pods(pod=MORE))[role]
    assert MORE["volumes"][0] in pod["volumes"]
    for container in containers(pod):
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "more"]
        assert mount == {**MORE["volumeMounts"][0], "readOnly": False}


@pytest.mark.parametrize("role", ROLES)
def test_security_contexts_of_ones_own_stand_instead_of_ours(role: str) -> None:
    own = {"securityContext": {"fsGroup": 7}, "containerSecurityContext": {}}
    pod = dict(pods(pod=own))[role]
    assert pod["securityContext"] == {"fsGroup": 7}
    assert [c["securityContext"] for c in containers(pod)] == [{}] * len(containers(pod))


@pytest.mark.parametrize("role", ROLES)
def test_ids_are_left_out_everywhere_where_the_cluster_assigns_them(role: str) -> None:
    fixed = dict(pods())[role]["securityContext"]
    assert {"runAsUser", "runAsGroup", "fsGroup"} < set(fixed)
    left = dict(pods(operator=OperatorSettings(fixed_ids=False)))[role]
    assert left["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in containers(left):
        assert not {"runAsUser", "runAsGroup"} & set(container["securityContext"])
