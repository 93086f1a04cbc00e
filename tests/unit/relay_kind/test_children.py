"""Children of a relay: what each of them promises."""

import copy
import re
from datetime import timedelta
from typing import Any

import pytest
import yaml

from fixtures.made_resources import KAFKA, outbox_relay
from fixtures.made_seen import retiring, seen
from outbox_core.contract.settings import RelaySettings
from outbox_operator.kube.refusals import differs
from outbox_operator.relay.children.pod import CONFIG_VOLUME
from outbox_operator.relay.decide.children import RelayChildren, decide_children
from outbox_operator.relay.seen import RelaySeen
from outbox_operator.relay.spec.resource import OutboxRelay
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest
from outbox_operator.shared.objects import REVISION
from outbox_operator.shared.seen import Secret

OPERATOR = OperatorSettings(relay_image="registry/relay:1")
SASL = {
    "usernameSecretRef": {"name": "kafka", "key": "user"},
    "passwordSecretRef": {"name": "kafka", "key": "password"},
}


def children(
    relay: OutboxRelay, replicas: int = 1, around: RelaySeen | None = None
) -> RelayChildren:
    return decide_children(relay, around or seen(), OPERATOR, replicas)


def child(
    relay: OutboxRelay, kind: str, replicas: int = 1, around: RelaySeen | None = None
) -> Manifest:
    (found,) = [c for c in children(relay, replicas, around).wanted if c["kind"] == kind]
    return found


def pod_of(manifest: Manifest) -> Manifest:
    spec = manifest["spec"]
    template: Manifest = (spec.get("jobTemplate", {}).get("spec") or spec)["template"]
    return template


def test_a_plain_relay_has_six_children() -> None:
    assert [c["kind"] for c in children(outbox_relay()).wanted] == [
        "ServiceAccount",
        "NetworkPolicy",
        "ConfigMap",
        "Service",
        "Deployment",
        "CronJob",
    ]


def test_every_child_has_its_owner_and_the_usual_labels() -> None:
    for made in children(outbox_relay(), replicas=2).wanted:
        meta = made["metadata"]
        (owner,) = meta["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("OutboxRelay", "orders", "1")
        assert owner["controller"] is True
        assert meta["namespace"] == "shop"
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "outbox-operator"
        assert meta["labels"]["app.kubernetes.io/instance"] == "orders"


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
def test_pods_are_fit_for_the_restricted_level(kind: str) -> None:
    spec = pod_of(child(outbox_relay(), kind))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["image"] == "registry/relay:1"


def test_claims_are_made_in_the_name_of_the_pod() -> None:
    (container,) = pod_of(child(outbox_relay(), "Deployment"))["spec"]["containers"]
    env = {e["name"]: e for e in container["env"]}
    assert env["POD_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert env["OUTBOX_DSN"]["valueFrom"]["secretKeyRef"] == {"name": "orders-db", "key": "dsn"}


def test_the_schema_is_brought_up_to_date_first_unless_somebody_else_does_it() -> None:
    store: dict[str, Any] = {"postgresql": {"dsnSecretRef": {"name": "orders-db"}}}
    (init,) = pod_of(child(outbox_relay(store=store), "Deployment"))["spec"]["initContainers"]
    assert init["args"] == ["migrate"]
    store["postgresql"]["manageSchema"] = False
    assert "initContainers" not in pod_of(child(outbox_relay(store=store), "Deployment"))["spec"]


def test_the_config_is_one_that_the_relay_reads() -> None:
    relay = outbox_relay(ordering="Key", publisher={"kafka": {**KAFKA, "sasl": SASL}})
    text = child(relay, "ConfigMap")["data"]["relay.yaml"]
    settings = RelaySettings.model_validate(yaml.safe_load(text))
    assert settings.name == "shop/orders"
    assert settings.ordering == "Key"
    kafka = settings.publisher.kafka
    assert kafka is not None
    assert kafka.sasl is not None
    assert kafka.sasl.password is not None
    assert str(kafka.sasl.password.file) == "/etc/outbox/secrets/kafka-sasl-password"


def test_secrets_are_mounted_as_files_where_the_broker_wants_some() -> None:
    relay = outbox_relay(publisher={"kafka": {**KAFKA, "sasl": SASL}})
    spec = pod_of(child(relay, "Deployment"))["spec"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "secrets"]
    assert {s["secret"]["name"] for s in volume["projected"]["sources"]} == {"kafka"}
    assert any(m["name"] == "secrets" for m in spec["containers"][0]["volumeMounts"])


def test_a_token_of_the_pods_own_is_projected_beside_them() -> None:
    token = {"audience": "kafka", "expiration": "30m"}
    sasl = {"mechanism": "OAUTHBEARER", "serviceAccountToken": token}
    relay = outbox_relay(publisher={"kafka": {**KAFKA, "sasl": sasl}})
    spec = pod_of(child(relay, "Deployment"))["spec"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "secrets"]
    (source,) = volume["projected"]["sources"]
    file = "kafka-sasl-service-account-token"
    assert source == {
        "serviceAccountToken": {"path": file, "audience": "kafka", "expirationSeconds": 1800}
    }
    assert spec["automountServiceAccountToken"] is False  # that one is for the API server
    settings = RelaySettings.model_validate(
        yaml.safe_load(child(relay, "ConfigMap")["data"]["relay.yaml"])
    )
    assert settings.publisher.kafka is not None
    assert settings.publisher.kafka.sasl is not None
    assert settings.publisher.kafka.sasl.token is not None
    assert str(settings.publisher.kafka.sasl.token.file) == f"/etc/outbox/secrets/{file}"


def config_of(template: Manifest) -> str:
    (volume,) = [v for v in template["spec"]["volumes"] if v["name"] == CONFIG_VOLUME]
    name: str = volume["configMap"]["name"]
    return name


def test_a_changed_config_is_another_config_map_and_makes_new_pods() -> None:
    names = []
    for size in (100, 100, 200):
        relay = outbox_relay(batchSize=size)
        made = child(relay, "ConfigMap")
        assert made["immutable"] is True  # so that a pod that starts again reads what it read
        for kind in ("Deployment", "CronJob"):
            assert config_of(pod_of(child(relay, kind))) == made["metadata"]["name"]
        names.append(made["metadata"]["name"])
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch(r"orders-relay-[0-9a-f]{10}", name) for name in names)


def test_the_longest_name_still_makes_a_config_map() -> None:
    name = child(outbox_relay(name="o" * 189), "ConfigMap")["metadata"]["name"]
    assert len(name) <= 63


def test_the_job_that_forgets_a_relay_reads_its_config() -> None:
    going = retiring()
    made = {c["kind"]: c for c in children(going, 0).wanted}
    assert config_of(pod_of(made["Job"])) == made["ConfigMap"]["metadata"]["name"]


@pytest.mark.parametrize(
    "spec", [{"batchSize": 7}, {"pod": {"image": "another"}}, {"pod": {"labels": {"team": "shop"}}}]
)
def test_pods_of_another_template_are_of_another_revision(spec: dict[str, Any]) -> None:
    before, same, after = (
        pod_of(child(outbox_relay(**given), "Deployment", replicas))["metadata"]["annotations"]
        for given, replicas in (({}, 1), ({}, 3), (spec, 1))
    )
    assert before[REVISION] == same[REVISION] != after[REVISION]


def test_a_changed_secret_makes_new_pods() -> None:
    annotations = [
        pod_of(child(outbox_relay(), "Deployment", around=seen(secrets=[Secret("orders-db", v)])))[
            "metadata"
        ]["annotations"]
        for v in ("1/1", "1/1", "1/2")
    ]
    assert annotations[0] == annotations[1] != annotations[2]


def test_a_pod_has_longer_to_stop_than_its_drain_takes() -> None:
    relay = outbox_relay(drainTimeout="50s")
    grace = pod_of(child(relay, "Deployment"))["spec"]["terminationGracePeriodSeconds"]
    assert timedelta(seconds=grace) > relay.spec.drain


def test_a_rollout_never_has_fewer_pods_than_asked_for() -> None:
    strategy = child(outbox_relay(), "Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_a_rollout_that_somebody_pauses_goes_on() -> None:
    wanted = child(outbox_relay(), "Deployment")
    live = copy.deepcopy(wanted)
    del live["spec"]["paused"]  # as the server shows one that is not paused
    assert not differs(wanted, live)
    live["spec"]["paused"] = True
    assert differs(wanted, live)


def test_a_pause_replaces_all_pods_at_once_and_suspends_the_reaper() -> None:
    relay = outbox_relay(paused=True)
    assert child(relay, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert child(relay, "CronJob")["spec"]["suspend"] is True
    assert child(outbox_relay(), "CronJob")["spec"]["suspend"] is False
    assert yaml.safe_load(child(relay, "ConfigMap")["data"]["relay.yaml"])["paused"] is True


@pytest.mark.parametrize(("replicas", "expected"), [(0, False), (1, False), (2, True)])
def test_several_pods_have_a_disruption_budget(replicas: int, expected: bool) -> None:
    made = children(outbox_relay(), replicas)
    name = ("PodDisruptionBudget", "orders-relay")
    assert (name in made.unwanted) is not expected
    assert any(c["kind"] == name[0] for c in made.wanted) is expected


def test_a_pod_that_is_not_ready_never_keeps_its_node_from_being_drained() -> None:
    spec = child(outbox_relay(), "PodDisruptionBudget", 2)["spec"]
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_without_a_network_policy_there_is_none() -> None:
    made = children(outbox_relay(networkPolicy={"enabled": False}))
    assert ("NetworkPolicy", "orders-relay") in made.unwanted


def test_pods_may_connect_everywhere_unless_it_is_restricted() -> None:
    assert child(outbox_relay(), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    to = [{"ports": [{"port": 5432}]}]
    spec = child(outbox_relay(networkPolicy={"egress": to}), "NetworkPolicy")["spec"]
    assert "Egress" in spec["policyTypes"]
    assert spec["egress"][1:] == to
    assert {p["port"] for p in spec["egress"][0]["ports"]} == {53}


def test_an_account_of_ones_own_is_used_and_none_is_made() -> None:
    relay = outbox_relay(pod={"serviceAccountName": "mine"})
    assert "ServiceAccount" not in {c["kind"] for c in children(relay).wanted}
    assert pod_of(child(relay, "Deployment"))["spec"]["serviceAccountName"] == "mine"


ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/orders"}


def test_the_account_has_the_annotations_by_which_a_cloud_knows_it() -> None:
    theirs = {"outbox.dev/resource": "another"}
    relay = outbox_relay(pod={"serviceAccountAnnotations": {**ROLE, **theirs}})
    metadata = child(relay, "ServiceAccount")["metadata"]
    assert metadata["annotations"] == {**ROLE, "outbox.dev/resource": "orders"}
    plain = child(outbox_relay(), "ServiceAccount")["metadata"]
    assert {**metadata, "annotations": plain["annotations"]} == plain


def test_other_annotations_of_the_account_replace_the_pods() -> None:
    """Clouds apply them when a pod is created."""

    def revision(*annotations: dict[str, str]) -> str:
        pod = {"serviceAccountAnnotations": annotations[0]} if annotations else {}
        made = pod_of(child(outbox_relay(pod=pod), "Deployment"))
        found: str = made["metadata"]["annotations"][REVISION]
        return found

    another = {name: f"{value}-2" for name, value in ROLE.items()}
    assert len({revision(), revision(ROLE), revision(another)}) == 3
    assert revision({}) == revision()  # an upgrade replaces no pods


def test_labels_of_a_resource_do_not_replace_those_that_select() -> None:
    relay = outbox_relay(pod={"labels": {"app.kubernetes.io/name": "mine", "team": "shop"}})
    made = child(relay, "Deployment")
    labels = pod_of(made)["metadata"]["labels"]
    assert labels["team"] == "shop"
    assert made["spec"]["selector"]["matchLabels"].items() <= labels.items()
