"""A cluster that was there before: it gets our images by way of a registry."""

import shutil
from pathlib import Path

import pytest

from dev.cluster import binaries
from dev.cluster.builtin.node import BuiltInNode
from dev.cluster.clusters import Cluster
from dev.cluster.existing_cluster import ExistingCluster
from dev.cluster.tiny_image import PROBE, TinyImage, pack
from fixtures import workloads
from fixtures.cluster import Namespace
from fixtures.registry import registry


@pytest.mark.skipif(not shutil.which("docker-registry"), reason="apt-get install docker-registry")
def test_pods_pull_what_was_pushed_for_them(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    if not isinstance(cluster, BuiltInNode):
        pytest.skip("of other clusters we do not know how they would reach a registry of ours")
    # A program of its own name, so an image of its own: containerd 1.6 does not find one that was
    # loaded by its name when it has pulled the same by another before.
    program = tmp_path / "pulled"
    shutil.copy(binaries.tiny(PROBE).archive.with_suffix(""), program)
    pack(program, "localhost/outbox-pulled:1", binaries.architecture())
    image = TinyImage("localhost/outbox-pulled:1", program.with_suffix(".tar"))
    with registry(tmp_path, ["nsenter", f"--net={cluster.folder}/ns/net", "--"]) as address:
        existing = ExistingCluster(
            {"KUBECONFIG": str(cluster.kubeconfig), "OUTBOX_REGISTRY": f"{address}/team"}
        )
        existing.up()
        existing.load([image])
        asks = workloads.container(
            *("main", existing.reference(image)),
            args=["get", "http://kubernetes.default.svc:443"],
        )
        namespace.apply(workloads.job("pulled", workloads.pod(asks)))
        namespace.wait_for_job("pulled")
    (pod,) = namespace.pods("job-name=pulled")
    assert existing.reference(image).startswith(f"{address}/team/outbox-pulled:1-")
    assert pod.status.container_statuses[0].image == existing.reference(image)
    assert f"{address}/team/outbox-pulled@sha256:" in pod.status.container_statuses[0].image_id
