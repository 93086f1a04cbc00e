"""
Certificates and the kubeconfigs that carry them, made once per cluster by openssl.

Called by `builtin_node`. Good for ten years: the cluster is thrown away long before.
"""

import base64
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..instance import NODE, Instance
from .namespaces import run

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "3650")


@dataclass(frozen=True)
class Identity:
    subject: str
    names: str = ""
    """What a server is called by; empty for what is only a client."""


def identities(instance: Instance) -> dict[str, Identity]:
    inside = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    inside.append("kubernetes.default.svc.cluster.local")
    addresses = (instance.address, instance.services[1], "127.0.0.1")
    api_names = [f"DNS:{name}" for name in inside] + [f"IP:{address}" for address in addresses]
    return {
        "apiserver": Identity("/CN=kube-apiserver", ",".join(api_names)),
        "apiserver-to-kubelet": Identity("/O=system:masters/CN=kube-apiserver-kubelet-client"),
        "admin": Identity("/O=system:masters/CN=admin"),
        "kubelet": Identity(
            f"/O=system:nodes/CN=system:node:{NODE}", f"DNS:{NODE},IP:{instance.address}"
        ),
        "controllers": Identity("/CN=system:kube-controller-manager"),
        "scheduler": Identity("/CN=system:kube-scheduler"),
        "proxy": Identity("/CN=system:kube-proxy"),
    }


KUBECONFIGS = ("admin", "kubelet", "controllers", "scheduler", "proxy")


def create(instance: Instance, folder: Path) -> None:
    """Whole or not at all; what is there is kept, or running pods' tokens would be void."""
    if folder.exists():
        return
    partial = folder.with_name("pki.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    ca = ("-keyout", f"{partial}/ca.key", "-out", f"{partial}/ca.crt")
    run("openssl", "req", "-x509", *KEY, "-subj", "/CN=outbox-cluster", *ca)
    signed = ("-CA", f"{partial}/ca.crt", "-CAkey", f"{partial}/ca.key")
    for name, identity in identities(instance).items():
        names = ("-addext", f"subjectAltName={identity.names}") if identity.names else ()
        run(
            *("openssl", "req", "-x509", *KEY, "-subj", identity.subject, *names, *signed),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", f"{partial}/{name}.key", "-out", f"{partial}/{name}.crt"),
        )
    tokens = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    run("openssl", "genpkey", *tokens, "-out", f"{partial}/tokens.key")
    run(
        "openssl",
        "pkey",
        "-in",
        f"{partial}/tokens.key",
        "-pubout",
        "-out",
        f"{partial}/tokens.pub",
    )
    for name in KUBECONFIGS:
        (partial / f"{name}.kubeconfig").write_text(_kubeconfig(instance, partial, name))
    partial.rename(folder)


def _kubeconfig(instance: Instance, folder: Path, name: str) -> str:
    """With everything inside: it can be copied to wherever it is wanted."""

    def embedded(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    cluster = {"server": instance.server, "certificate-authority-data": embedded("ca.crt")}
    user = {
        "client-certificate-data": embedded(f"{name}.crt"),
        "client-key-data": embedded(f"{name}.key"),
    }
    context = f"outbox-{instance.name}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }
    return json.dumps(config, indent=2) + "\n"  # which is YAML, too
