"""Children of a replay: what each of them promises, with either engine."""

import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from fixtures.corpus import Case, cases, examples
from fixtures.made_replays import REGISTERED, around, child
from fixtures.made_resources import outbox_relay, outbox_replay
from outbox_core.contract.replay import ReplayRequest, ReplaySettings
from outbox_operator.replay.children.spark_conf import SPARK_VERSION, with_overhead
from outbox_operator.replay.decide.attempt import Starting
from outbox_operator.replay.decide.children import ReplayChildren, decide_replay_children
from outbox_operator.replay.decide.step import Cancel, Follow, Start, Step, Suspend
from outbox_operator.replay.spec.resource import OutboxReplay, SparkPod
from outbox_operator.replay.spec.settings import replay_settings
from outbox_operator.settings import OperatorSettings
from outbox_operator.shared.names import Manifest

ROOT = Path(__file__).resolve().parents[3]
OPERATOR = OperatorSettings(spark_image="registry/spark:1", image_pull_policy="IfNotPresent")
LOCAL: dict[str, Any] = {"executor": {"instances": 0}}
POD: dict[str, Any] = {
    "image": "mine:1",
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "env": [{"name": "PROXY", "value": "p"}],
    "labels": {"team": "shop", "app.kubernetes.io/name": "mine"},
    "annotations": {"sidecar": "no"},
    "priorityClassName": "low",
}


def children(replay: OutboxReplay, engine: Any = "Job", attempt: int = 1) -> ReplayChildren:
    return decide_replay_children(replay, around(), Start(attempt, engine), OPERATOR)


def wanted(replay: OutboxReplay) -> dict[str, Manifest]:
    return {c["kind"]: c for c in children(replay).wanted}


def job(replay: OutboxReplay, attempt: int = 1) -> Manifest:
    made = children(replay, "Job", attempt).attempt
    assert made is not None
    assert made["kind"] == "Job"
    return made


def driver_of(made: Manifest) -> Manifest:
    (container,) = made["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found


def application(replay: OutboxReplay, attempt: int = 1) -> Manifest:
    made = children(replay, "SparkApplication", attempt).attempt
    assert made is not None
    assert made["kind"] == "SparkApplication"
    return made


def conf_of(made: Manifest) -> dict[str, str]:
    words = driver_of(made)["args"]
    return dict(word.split("=", 1) for flag, word in itertools.pairwise(words) if flag == "--conf")


# Which ones --------------------------------------------------------------------------------------


def test_a_replay_with_executors_has_an_account_its_rights_and_its_settings() -> None:
    assert [c["kind"] for c in children(outbox_replay()).wanted] == [
        "ServiceAccount",
        "RoleBinding",
        "ConfigMap",
    ]


@pytest.mark.parametrize("spec", [LOCAL, {"dryRun": True}])
def test_without_executors_no_rights_are_needed(spec: dict[str, Any]) -> None:
    replay = outbox_replay(**spec)
    assert set(wanted(replay)) == {"ServiceAccount", "ConfigMap"}
    assert set(wanted(replay)["ConfigMap"]["data"]) == {"replay.json"}
    pod = job(replay)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False


def test_an_account_of_ones_own_is_used_bound_and_not_made() -> None:
    replay = outbox_replay(pod={"serviceAccountName": "mine"})
    found = wanted(replay)
    assert set(found) == {"RoleBinding", "ConfigMap"}
    assert found["RoleBinding"]["subjects"][0]["name"] == "mine"
    assert job(replay)["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_the_account_has_the_annotations_by_which_a_cloud_knows_it() -> None:
    given = {"iam.gke.io/gcp-service-account": "orders@shop.iam.gserviceaccount.com"}
    found = wanted(outbox_replay(pod={"serviceAccountAnnotations": given}))["ServiceAccount"]
    assert found["metadata"]["annotations"].items() >= given.items()


@pytest.mark.parametrize(("namespaces", "kind"), [((), "ClusterRole"), (("shop",), "Role")])
def test_the_rights_are_those_that_the_chart_made(namespaces: tuple[str, ...], kind: str) -> None:
    operator = OperatorSettings(namespaces=namespaces, driver_role="ours-driver")
    made = decide_replay_children(outbox_replay(), around(), Start(1, "Job"), operator)
    (binding,) = [c for c in made.wanted if c["kind"] == "RoleBinding"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (kind, "ours-driver")
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "again-replay", "namespace": "shop"}
    ]


def test_while_an_attempt_runs_what_it_needs_is_kept_and_it_is_not_made_again() -> None:
    made = decide_replay_children(outbox_replay(), around(), Follow(Starting()), OPERATOR)
    assert made.attempt is None
    assert made.wanted == children(outbox_replay()).wanted


@pytest.mark.parametrize("step", [Suspend(), Cancel()])
def test_a_replay_that_is_suspended_or_deleted_has_no_attempt_left(step: Step) -> None:
    seen = around(job=child(), application=child())
    made = decide_replay_children(outbox_replay(), seen, step, OPERATOR)
    assert set(made.unwanted) == {("Job", "again-1"), ("SparkApplication", "again-1")}
    assert made.wanted == []


def test_every_child_has_its_owner_and_the_usual_labels() -> None:
    replay = outbox_replay()
    for made in (*children(replay).wanted, job(replay), application(replay)):
        meta = made["metadata"]
        (owner,) = meta["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("OutboxReplay", "again")
        assert owner["uid"] == replay.metadata.uid
        assert meta["namespace"] == "shop"
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "outbox-operator"
        assert meta["labels"]["app.kubernetes.io/name"] == "outbox-replay"
        assert meta["annotations"]["outbox.dev/resource"] == "again"


# What the driver is told -------------------------------------------------------------------------


def test_the_driver_can_read_its_settings() -> None:
    timeouts = {"postgresql": {"dsnSecretRef": {"name": "orders-db"}, "statementTimeout": "7s"}}
    relay = outbox_relay(store=timeouts, relayName="old-name")
    replay = outbox_replay(maxEvents=5, select={"eventTypes": ["order.*"]})
    read = ReplaySettings.model_validate_json(json.dumps(replay_settings(replay, relay)))
    assert (read.id, read.relay) == ("shop/again@01234567", "old-name")
    assert (read.max_events, read.select.event_types) == (5, ("order.*",))
    assert read.store.statement_timeout.total_seconds() == 7
    assert read.store.dsn.env == "OUTBOX_DSN"
    assert read.requested_by is None


REQUESTS = [
    case
    for case in (*cases("good"), *examples())
    if any(body["kind"] == "OutboxReplay" for body in case.bodies)
]


@pytest.mark.parametrize("case", REQUESTS, ids=str)
def test_whatever_may_be_asked_for_reaches_the_driver_as_it_was_asked(case: Case) -> None:
    replay = OutboxReplay.parse(case.bodies[-1])
    read = ReplaySettings.model_validate_json(json.dumps(replay_settings(replay, REGISTERED)))
    for name in ReplayRequest.model_fields:
        assert getattr(read, name) == getattr(replay.spec, name)


def test_the_requester_is_in_the_audit() -> None:
    replay = outbox_replay()
    annotations = {"outbox.dev/requested-by": "ann"}
    metadata = replay.metadata.model_copy(update={"annotations": annotations})
    replay = replay.model_copy(update={"metadata": metadata})
    assert replay_settings(replay, REGISTERED)["requestedBy"] == "ann"


# The Job -----------------------------------------------------------------------------------------


def test_a_job_is_one_attempt_and_no_more() -> None:
    made = job(outbox_replay(), attempt=2)
    assert made["metadata"]["name"] == "again-2"
    assert made["spec"]["backoffLimit"] == 0
    assert made["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels["outbox.dev/attempt"] == "2"
    assert labels["outbox.dev/uid"] == outbox_replay().metadata.uid


def test_the_driver_in_a_job_asks_for_executors_itself() -> None:
    made = job(outbox_replay(executor={"instances": 3, "cores": 2, "memory": "2Gi", "cpu": "500m"}))
    words = driver_of(made)["args"]
    assert words[:3] == ["driver", "--master", "k8s://https://kubernetes.default.svc"]
    assert words[-3:] == [
        "local:///opt/spark/replay.py",
        "--config",
        "/etc/outbox/replay/replay.json",
    ]
    conf = conf_of(made)
    assert conf["spark.executor.instances"] == "3"
    assert conf["spark.executor.cores"] == "2"
    assert conf["spark.executor.memory"] == "2g"
    assert conf["spark.kubernetes.executor.request.cores"] == "500m"
    assert conf["spark.kubernetes.container.image"] == "registry/spark:1"
    assert conf["spark.driver.host"] == "$(POD_IP)"
    assert conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    assert made["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    names = [e["name"] for e in driver_of(made)["env"]]
    assert {"POD_IP", "POD_NAME", "OUTBOX_DSN", "SPARK_DRIVER_BIND_ADDRESS"} <= set(names)


def test_the_executors_template_is_in_the_file_that_spark_reads() -> None:
    replay = outbox_replay(pod=POD)
    file = conf_of(job(replay))["spark.kubernetes.executor.podTemplateFile"]
    pod = driver_of(job(replay))
    (mount,) = [m for m in pod["volumeMounts"] if m["name"] == "config"]
    assert file == f"{mount['mountPath']}/executor.yaml"
    template = yaml.safe_load(wanted(replay)["ConfigMap"]["data"]["executor.yaml"])
    assert (template["apiVersion"], template["kind"]) == ("v1", "Pod")
    (container,) = template["spec"]["containers"]
    assert container["name"] == "spark-kubernetes-executor"
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "executor"


def test_without_executors_the_driver_does_it_all_itself() -> None:
    made = job(outbox_replay(**LOCAL, driver={"cores": 3, "memory": "512Mi"}))
    assert driver_of(made)["args"][:3] == ["driver", "--master", "local[3]"]
    assert conf_of(made)["spark.driver.memory"] == "512m"


def test_a_dry_run_starts_no_spark_and_asks_for_little() -> None:
    container = driver_of(job(outbox_replay(dryRun=True)))
    assert container["args"][:2] == ["python", "/opt/spark/replay.py"]
    assert container["resources"]["requests"]["memory"] == "192Mi"


@pytest.mark.parametrize(
    ("memory", "needed"), [("512Mi", "896Mi"), ("1Gi", "1434Mi"), ("10Gi", "14336Mi")]
)
def test_a_driver_gets_its_memory_and_sparks_usual_overhead(memory: str, needed: str) -> None:
    assert with_overhead(SparkPod(memory=memory)) == needed
    resources = driver_of(job(outbox_replay(driver={"memory": memory})))["resources"]
    assert resources == {
        "requests": {"cpu": "1", "memory": needed},
        "limits": {"memory": needed},
    }


# The SparkApplication ----------------------------------------------------------------------------

WITHOUT_WEBHOOK = {
    "cores",
    "coreRequest",
    "memory",
    "serviceAccount",
    "instances",
    "template",
}
"""Fields of driver and executor that the operator itself hands to spark-submit."""


def test_nothing_in_a_spark_application_needs_the_webhook() -> None:
    spec = application(outbox_replay(pod=POD))["spec"]
    assert set(spec) == {
        "type",
        "mode",
        "sparkVersion",
        "image",
        "imagePullPolicy",
        "mainApplicationFile",
        "arguments",
        "restartPolicy",
        "sparkConf",
        "driver",
        "executor",
    }
    for part in ("driver", "executor"):
        assert set(spec[part]) <= WITHOUT_WEBHOOK
        (container,) = spec[part]["template"]["spec"]["containers"]
        assert container["name"] == f"spark-kubernetes-{part}"
        env = {e["name"]: e for e in container["env"]}
        assert env["OUTBOX_DSN"]["valueFrom"]["secretKeyRef"]["name"] == "orders-db"
        assert env["PROXY"]["value"] == "p"


def test_a_spark_application_asks_for_no_network_policy_of_spark_submit_unless_told_to() -> None:
    key = "spark.kubernetes.driver.pod.excludedFeatureSteps"
    assert application(outbox_replay())["spec"]["sparkConf"][key].endswith(
        "NetworkPolicyFeatureStep"
    )
    given = outbox_replay(sparkConf={key: "another.Step"})
    assert application(given)["spec"]["sparkConf"][key] == "another.Step"


@pytest.mark.parametrize("spec", [{}, LOCAL])
def test_jvms_start_quickly_unless_the_resource_has_options_of_its_own(
    spec: dict[str, Any],
) -> None:
    key = "spark.driver.extraJavaOptions"
    assert conf_of(job(outbox_replay(**spec)))[key] == "-XX:TieredStopAtLevel=1"
    given = outbox_replay(sparkConf={key: "-XX:+UseZGC"}, **spec)
    assert conf_of(job(given))[key] == "-XX:+UseZGC"


def test_a_spark_application_is_one_attempt_and_is_never_run_again() -> None:
    made = application(outbox_replay(executor={"instances": 4, "cores": 2}), attempt=3)
    spec = made["spec"]
    assert made["metadata"]["name"] == "again-3"
    assert spec["restartPolicy"] == {"type": "Never"}
    assert "timeToLiveSeconds" not in spec
    assert spec["mainApplicationFile"] == "local:///opt/spark/replay.py"
    assert spec["arguments"] == ["--config", "/etc/outbox/replay/replay.json"]
    assert (spec["executor"]["instances"], spec["executor"]["cores"]) == (4, 2)
    assert spec["driver"]["serviceAccount"] == "again-replay"


def test_labels_of_a_spark_application_do_not_make_executors_drivers() -> None:
    """Its operator puts them on all pods, over what the templates say."""
    made = application(outbox_replay())
    assert "app.kubernetes.io/component" not in made["metadata"]["labels"]
    roles = {
        part: made["spec"][part]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for part in ("driver", "executor")
    }
    assert roles == {"driver": "driver", "executor": "executor"}


def test_the_version_of_spark_is_one_that_the_image_may_hold() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(r) for r in extras["optional-dependencies"]["spark"]]
    (pyspark,) = [r for r in requirements if r.name == "pyspark"]
    assert SPARK_VERSION in pyspark.specifier


# Both --------------------------------------------------------------------------------------------


def templates(replay: OutboxReplay) -> list[Manifest]:
    spec = application(replay)["spec"]
    return [
        job(replay)["spec"]["template"],
        spec["driver"]["template"],
        spec["executor"]["template"],
        yaml.safe_load(wanted(replay)["ConfigMap"]["data"]["executor.yaml"]),
    ]


def test_all_pods_are_fit_for_the_restricted_level() -> None:
    for template in templates(outbox_replay()):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_executors_have_no_token_of_the_api_server() -> None:
    _, _, *executors = templates(outbox_replay())
    for template in executors:
        assert template["spec"]["automountServiceAccountToken"] is False


def test_settings_of_pods_apply_to_all_of_them() -> None:
    for template in templates(outbox_replay(pod=POD)):
        meta, pod = template["metadata"], template["spec"]
        assert meta["labels"]["team"] == "shop"
        assert meta["labels"]["app.kubernetes.io/name"] == "outbox-replay"  # ours win
        assert meta["annotations"]["sidecar"] == "no"
        assert pod["nodeSelector"] == {"disk": "fast"}
        assert pod["tolerations"] == [{"operator": "Exists"}]
        assert pod["affinity"] == {"nodeAffinity": {}}
        assert pod["priorityClassName"] == "low"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert driver_of(job(outbox_replay(pod=POD)))["image"] == "mine:1"
    assert application(outbox_replay(pod=POD))["spec"]["image"] == "mine:1"


def test_settings_of_spark_can_be_added_and_ours_win() -> None:
    given = {"spark.eventLog.enabled": "true", "spark.dynamicAllocation.enabled": "true"}
    replay = outbox_replay(sparkConf=given)
    for conf in (conf_of(job(replay)), application(replay)["spec"]["sparkConf"]):
        assert conf["spark.eventLog.enabled"] == "true"
        assert conf["spark.dynamicAllocation.enabled"] == "false"


def test_drivers_need_rights_on_pods_alone() -> None:
    replay = outbox_replay()
    for conf in (conf_of(job(replay)), application(replay)["spec"]["sparkConf"]):
        assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"
        assert conf["spark.kubernetes.driver.service.deleteOnTermination"] == "false"
        assert conf["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"


@pytest.mark.parametrize("name", ["a.b", "1st", "x" * 253])
def test_whatever_a_replay_is_called_its_attempts_have_names_that_hosts_may_have(name: str) -> None:
    replay = outbox_replay(name=name)
    made = job(replay, attempt=100)["metadata"]["name"]
    executor = f"{conf_of(job(replay, 100))['spark.kubernetes.executor.podNamePrefix']}-exec-1000"
    for found in (made, executor, f"{made}-driver"):
        assert len(found) <= 63
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", found)
