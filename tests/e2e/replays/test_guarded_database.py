"""
A cluster that assigns user ids, and a database that talks TLS alone and asks for certificates: a
relay, a command in its pod, and replays, as the kubelet mounts what the operator asks for.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures import workloads
from fixtures.certificates import Authority
from fixtures.replay_shop import Replays
from fixtures.shop import Backends, Shop

pytestmark = pytest.mark.timeout(300)

ANY = 1_000_770_000
"""As OpenShift assigns them: no image knows it."""
HBA = """
local   all all     trust
hostssl all all all scram-sha-256 clientcert=verify-full
"""
SETTINGS = (
    "ssl=on",
    "ssl_cert_file=/etc/tls/tls.crt",
    "ssl_key_file=/etc/tls/tls.key",
    "ssl_ca_file=/etc/tls/ca.crt",
    "hba_file=/etc/tls/hba",
)
TLS = {
    "caSecretRef": {"name": "shop-ca", "key": "ca.crt"},
    "certSecretRef": {"name": "shop-relay", "key": "tls.crt"},
    "keySecretRef": {"name": "shop-relay", "key": "tls.key"},
}
POD: dict[str, Any] = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": ANY,
        "runAsGroup": 0,
        "fsGroup": ANY,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "volumes": [{"name": "more", "configMap": {"name": "more"}}],
    "volumeMounts": [{"name": "more", "mountPath": "/etc/more"}],
}
LOCAL: dict[str, Any] = {"engine": "Job", "driver": {"cpu": "100m"}, "executor": {"instances": 0}}


@pytest.fixture
def authority() -> Iterator[Authority]:
    folder = Path(tempfile.mkdtemp())
    yield Authority(folder / "ca", "the database's CA")
    shutil.rmtree(folder)


def secret(name: str, **files: str) -> dict[str, Any]:
    data = {key.replace("_", "."): text for key, text in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


class Guarded(Backends):
    """Only the pod itself gets in without a certificate."""

    def sql(self, query: str, database: str = "app") -> list[str]:
        (server,) = self.namespace.pods("app=postgres")
        command = ["psql", "-U", "postgres", "-d", database, "-v", "ON_ERROR_STOP=1", "-Atc", query]
        return self.namespace.run(server.metadata.name, command).splitlines()


def open_guarded(shop: Shop, authority: Authority) -> None:
    """A database server of the shop's own, in its namespace; Kafka stays the common one."""
    namespace, common = shop.namespace, shop.backends
    server = authority.issue("server", f"postgres.{namespace.name}.svc")
    client = authority.issue("postgres")
    ca = authority.cert.read_text()
    service, deployment, store = workloads.postgres(common.images["postgres"])
    spec = deployment["spec"]["template"]["spec"]
    tls = {"secretName": "server", "defaultMode": 0o440}
    spec["volumes"].append({"name": "tls", "secret": tls})
    (container,) = spec["containers"]
    container["volumeMounts"].append({"name": "tls", "mountPath": "/etc/tls"})
    container["args"] = [word for setting in SETTINGS for word in ("-c", setting)]
    certificate = {"tls_crt": server.cert.read_text(), "tls_key": server.key.read_text()}
    namespace.apply(
        secret("server", ca_crt=ca, hba=HBA, **certificate),
        secret("shop-ca", ca_crt=ca),
        secret("shop-relay", tls_crt=client.cert.read_text(), tls_key=client.key.read_text()),
        workloads.config_map("more", {"note": "it is mounted"}),
        service,
        deployment,
        store,
    )
    namespace.wait_for_rollout("postgres", 120)
    shop.backends = Guarded(common.images, namespace, common.tools)
    shop.backends.kafka = common.kafka
    shop.database = "app"
    # What the DSN says about TLS does not count.
    shop.rotate(shop.backends.dsn("app") + "?sslmode=disable")


def test_a_relay_and_its_replays_work_as_any_user_and_with_certificates(
    shop: Shop, authority: Authority
) -> None:
    open_guarded(shop, authority)

    def store(tls: dict[str, Any]) -> dict[str, Any]:
        return {"postgresql": {"dsnSecretRef": {"name": "store"}, "tls": tls}}

    shop.apply(store=store({"caSecretRef": TLS["caSecretRef"]}), pod=POD)
    missing = shop.wait_condition("Degraded", "True", "TlsFailed")
    assert "certSecretRef" in missing["message"]

    shop.apply(store=store(TLS), pod=POD)
    shop.wait_settled()
    shop.sql("INSERT INTO outbox.event (event_type, payload) VALUES ('order.created', 'x')")
    shop.wait_published(1)

    (pod,) = shop.relay_pods()
    tell = "import os, pathlib; print(os.getuid(), pathlib.Path('/etc/more/note').read_text())"
    assert shop.namespace.run(pod, ["python", "-c", tell]).strip() == f"{ANY} it is mounted"
    assert "order.created" in shop.namespace.run(pod, ["outbox-relay", "list"])
    sessions = "SELECT DISTINCT ssl, client_dn FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
    ours = "WHERE application_name LIKE 'outbox-relay %'"
    assert shop.sql(f"{sessions} {ours}") == ["t|/CN=postgres"]

    replays = Replays(shop)
    again: dict[str, Any] = {"select": {"states": ["PUBLISHED"], "eventTypes": ["*"]}, "pod": POD}
    replays.create("look", dryRun=True, **again, **LOCAL)
    assert replays.wait_phase("Succeeded", name="look")["matched"] == 1
    replays.create("again", **again, **LOCAL)
    assert replays.wait_phase("Succeeded", name="again")["replayed"] == 1
