"""
The stage: a cluster, the images in it, and the files that `story` applies.

Called by `__main__`. Files with a `$name` in them are written again below build/, because how pods
name an image depends on the cluster; the others are applied as they are.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from dev.cluster import binaries
from dev.cluster.clusters import Cluster, chosen, exports
from dev.cluster.existing_cluster import ExistingCluster
from dev.images.build import built

ROOT = Path(__file__).resolve().parents[2]
HERE = Path("dev/demo")
MANIFESTS = HERE / "manifests"
APPS = HERE / "apps"
CHART = Path("charts/outbox-operator")
IMAGES = ("operator", "relay", "spark", "postgres", "kafka")


@dataclass(frozen=True)
class Wish:
    """What was asked for."""

    namespace: str
    """The shop's."""
    system: str
    """The operator's own namespace."""
    orders: int
    """How many shall be committed at least, about half of them after the kill."""
    crds: bool
    """Whether to install the custom resource definitions, or to use those that are there."""
    written: Path
    """Where the files with the names of images go."""


@dataclass(frozen=True)
class Stage:
    environ: Mapping[str, str]
    """For kubectl and helm."""
    take_ownership: bool
    """Of custom resource definitions that tests have left behind. Not in a cluster that was there
    before us: an operator may be at work there, and then helm refuses, as it should."""


def set_up(wish: Wish) -> Stage:
    cluster = chosen(os.environ, loudly=True)
    cluster.prepare()
    binaries.client()
    cluster.up()
    images = {image.name: image for image in built(IMAGES)}
    cluster.load(images.values())
    references = {name: cluster.reference(image) for name, image in images.items()}
    write_files(wish, references)
    return Stage(
        environ={**os.environ, **exports(cluster, os.environ)},
        take_ownership=not is_somebodys(cluster),
    )


def is_somebodys(cluster: Cluster) -> bool:
    return isinstance(cluster, ExistingCluster)


def write_files(wish: Wish, references: Mapping[str, str]) -> None:
    known = {"namespace": wish.namespace}
    for name, reference in references.items():
        repository, _, tag = reference.rpartition(":")
        known |= {name: reference, f"{name}_repository": repository, f"{name}_tag": tag}
    wish.written.mkdir(parents=True, exist_ok=True)
    for template in (ROOT / MANIFESTS).glob("*.yaml"):
        text = template.read_text()
        if "$" in text:
            (wish.written / template.name).write_text(Template(text).substitute(known))
