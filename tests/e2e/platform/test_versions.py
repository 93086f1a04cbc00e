"""
Definitions, operator and relay image go to the next version and back, under load: nothing is lost,
and no relay is called invalid in between.

The next version is this one with other tags and definitions that know more: fields with defaults,
which the API server then adds to every relay. In an upgrade the definitions come first, and after a
downgrade they may stay.
"""

import io
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster.image import Image
from dev.images.build import built
from fixtures.cluster import Kube
from fixtures.installation import CHART, Installation, named
from fixtures.shop import Shop

EVENTS = 6000
UNKNOWN = {
    "type": "object",
    "default": {"mode": "Auto"},
    "properties": {"mode": {"type": "string"}},
}
POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Retagged:
    """An image under the tag of the next version."""

    name: str
    reference: str
    archive: Path
    digest: str


def retagged(image: Image, folder: Path) -> Retagged:
    reference = f"{image.reference}-next"
    target = folder / f"{image.name}.tar"
    with tarfile.open(image.archive) as old, tarfile.open(target, "w") as new:
        for member in old:
            content = old.extractfile(member) if member.isfile() else None
            if content is not None and member.name == "manifest.json":
                (manifest,) = json.load(content)
                written = json.dumps([{**manifest, "RepoTags": [reference]}]).encode()
                member.size, content = len(written), io.BytesIO(written)
            new.addfile(member, content)
    return Retagged(image.name, reference, target, image.digest)


def next_chart(folder: Path) -> Path:
    """Its definitions know fields that this version does not."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    for path in (chart / "files" / "crds").glob("*.yaml"):
        definition: dict[str, Any] = yaml.safe_load(path.read_text())
        (version,) = definition["spec"]["versions"]
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["future"] = UNKNOWN
        spec["pod"]["properties"]["future"] = UNKNOWN
        if kafka := spec.get("publisher", {}).get("properties", {}).get("kafka"):
            kafka["properties"]["future"] = UNKNOWN
        path.write_text(yaml.safe_dump(definition))
    return chart


@contextmanager
def reasons_of(shop: Shop) -> Iterator[set[str]]:
    """All that its conditions gave meanwhile."""
    found: set[str] = set()
    enough = threading.Event()

    def look() -> None:
        while not enough.wait(POLL_SECONDS):
            found.update(c["reason"] for c in shop.status().get("conditions") or ())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        enough.set()
        thread.join(30)


@pytest.fixture
def release(installed: Installation) -> Iterator[Installation]:
    """As it was, afterwards."""
    yield installed
    installed.install()


def image_of(shop: Shop) -> str:
    deployment = shop.child("Deployment")
    assert deployment is not None
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def wait_for_image(shop: Shop, reference: str) -> None:
    shop.namespace.wait(lambda: image_of(shop) == reference, 60, f"pods of {reference}")
    shop.wait_settled(2)


def test_a_version_up_and_down_again_under_load(
    shop: Shop, release: Installation, kube: Kube, tmp_path: Path
) -> None:
    ours = {image.name: image for image in built(["operator", "relay"])}
    theirs = {name: retagged(image, tmp_path) for name, image in ours.items()}
    later = {name: named(kube.image(image)) for name, image in theirs.items()}
    now = kube.cluster.reference(ours["relay"])
    chart = next_chart(tmp_path)
    shop.apply(replicas=2, ordering="Key", **shop.unhurried())
    shop.wait_settled(2)
    emitting = shop.emit(EVENTS, seconds=40)
    shop.wait_published(1)
    with reasons_of(shop) as reasons:
        release.install(chart)  # this operator, and definitions that know more
        assert shop.resource()["spec"]["future"] == {"mode": "Auto"}
        shop.patch({"batchSize": 300})
        shop.wait_settled(2)

        release.install(chart, images=later)
        wait_for_image(shop, theirs["relay"].reference)

        release.install(chart)  # back, before the definitions
        wait_for_image(shop, now)
        release.install()
        assert "future" not in shop.resource()["spec"]
        shop.patch({"batchSize": 400})
        shop.wait_settled(2)
        shop.finish(emitting, 120)
    assert "SpecInvalid" not in reasons
    assert shop.arrived(EVENTS) == {"missing": 0, "again": 0, "disorder": 0}
