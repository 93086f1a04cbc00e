"""
What runs on the node: each component's command line, its configuration, how to see it is well.

Pure. `builtin_node` writes the files and starts the components, stage by stage; `supervision`
watches over them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ..instance import NODE, Instance
from ..tiny_image import PAUSE

CNI_PLUGINS = "/usr/lib/cni"


@dataclass(frozen=True)
class Component:
    name: str
    command: tuple[str, ...]
    health: str
    """A URL that answers 200."""


def stages(instance: Instance) -> list[list[Component]]:
    """Each stage starts when the one before it is well: otherwise its components fail and retry."""
    folder, address = instance.folder, instance.address
    pki = folder / "pki"
    etcd, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"

    def component(name: str, health: str, /, *positional: str, **flags: object) -> Component:
        words = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
        return Component(name, (f"{folder}/bin/node", name, *positional, *words), health)

    return [
        [
            component(
                "etcd",
                f"http://{address}:2381/health",
                name=NODE,
                data_dir=folder / "etcd",
                listen_client_urls=etcd,
                advertise_client_urls=etcd,
                listen_peer_urls=peer,
                initial_advertise_peer_urls=peer,
                initial_cluster=f"{NODE}={peer}",
                listen_metrics_urls=f"http://{address}:2381",  # health and figures, no data
                unsafe_no_fsync="true",  # it outlives a crash of etcd; after one of the machine
                log_level="warn",  #       we start from nothing anyway
            ),
            Component(
                "containerd",
                ("containerd", "--config", f"{folder}/containerd.toml"),
                # Its socket would not do: the kernel accepts there even while containerd hangs.
                f"http://{address}:1338/v1/metrics",
            ),
        ],
        [
            component(
                "kube-apiserver",
                f"{instance.server}/readyz",
                etcd_servers=etcd,
                advertise_address=address,
                service_cluster_ip_range=instance.services,
                allow_privileged="true",
                authorization_mode="Node,RBAC",
                enable_admission_plugins="NodeRestriction",
                client_ca_file=pki / "ca.crt",
                tls_cert_file=pki / "apiserver.crt",
                tls_private_key_file=pki / "apiserver.key",
                service_account_issuer="https://kubernetes.default.svc.cluster.local",
                service_account_key_file=pki / "tokens.pub",
                service_account_signing_key_file=pki / "tokens.key",
                kubelet_client_certificate=pki / "apiserver-to-kubelet.crt",
                kubelet_client_key=pki / "apiserver-to-kubelet.key",
                kubelet_certificate_authority=pki / "ca.crt",
                kubelet_preferred_address_types="InternalIP",
            ),
        ],
        [
            component(
                "kube-controller-manager",
                f"https://{address}:10257/healthz",
                kubeconfig=pki / "controllers.kubeconfig",
                use_service_account_credentials="true",
                leader_elect="false",  # there is only one
                # Of each controller. By default the garbage collector takes minutes for the
                # children of two hundred relays, and tests wait for it.
                kube_api_qps="200",
                kube_api_burst="400",
                root_ca_file=pki / "ca.crt",
                service_account_private_key_file=pki / "tokens.key",
                cluster_signing_cert_file=pki / "ca.crt",
                cluster_signing_key_file=pki / "ca.key",
            ),
            component(
                "kube-scheduler",
                f"https://{address}:10259/healthz",
                kubeconfig=pki / "scheduler.kubeconfig",
                leader_elect="false",
            ),
            component("coredns", f"http://{address}:8181/ready", "-conf", f"{folder}/Corefile"),
            component(
                "kubelet",
                f"http://{address}:10248/healthz",
                config=folder / "kubelet.json",
                kubeconfig=pki / "kubelet.kubeconfig",
                hostname_override=NODE,
                node_ip=address,
                root_dir=folder / "kubelet",
            ),
            component(
                "kube-proxy",
                f"http://{address}:10256/healthz",
                kubeconfig=pki / "proxy.kubeconfig",
                hostname_override=NODE,
                proxy_mode="iptables",
                cluster_cidr=instance.pods,
                healthz_bind_address=f"{address}:10256",
                conntrack_max_per_core=0,  # the machine's setting, not ours to change
            ),
        ],
    ]


def files(instance: Instance) -> Mapping[str, str]:
    """By name below the instance's folder."""
    folder = instance.folder
    return {
        "containerd.toml": CONTAINERD.format(
            folder=folder,
            address=instance.address,
            pause=PAUSE,
            plugins=CNI_PLUGINS,
        ),
        "cni/10-pods.conflist": json.dumps(_cni(instance), indent=2),
        "kubelet.json": json.dumps(_kubelet(instance), indent=2),
        "Corefile": COREFILE.format(folder=folder, address=instance.address),
        "resolv.conf": "",  # pods ask our DNS; there is nothing to ask beyond it
    }


CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{folder}/containerd.sock"
[metrics]
  address = "{address}:1338"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without CAP_SYS_RESOURCE a container cannot be made harder to kill than we are, and fails.
  restrict_oom_score_adj = true
  disable_apparmor = true  # its profile would stay in the kernel
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""

COREFILE = """\
.:53 {{
  errors
  ready {address}:8181
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {folder}/pki/admin.kubeconfig
    pods insecure
  }}
  cache 5
}}
"""


def _cni(instance: Instance) -> dict[str, object]:
    """
    `ptp`: a wire from each pod to the node, everything is routed.

    With a bridge, a pod's packet to a service on its own node comes back unseen by the address
    translation, unless the kernel has br_netfilter.
    """
    pod = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(instance.pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [pod, ports]}


def _kubelet(instance: Instance) -> dict[str, object]:
    folder, pki = instance.folder, instance.folder / "pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": str(instance.address),
        "healthzBindAddress": str(instance.address),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        # Its own: kubelet kills what it finds in its group and does not know.
        "cgroupRoot": f"/{instance.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [str(instance.address)],
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "localStorageCapacityIsolation": False,
        # A developer's disk is often nearly full, and an image that was loaded by hand cannot be
        # pulled again: never collect images, and evict late.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
    }
