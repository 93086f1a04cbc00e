"""
What is in an image, as CycloneDX 1.6: Debian's packages, Python's, and jars.

Read from the image's archive alone, layer by layer as a container sees them, so that it lists
what is there and not what was asked for. Written by hand: of the format this takes a page, and
the library for it would bring a dozen packages. Called by `__main__`.
"""

import email.parser
import io
import json
import re
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

Component = dict[str, Any]

DPKG = re.compile(r"var/lib/dpkg/status\.d/(?!.*\.md5sums$)[^/]+")
PYTHON = re.compile(r".*\.dist-info/METADATA")
JAR = re.compile(r".*/([^/]+)\.jar")
JAR_NAME = re.compile(r"(.+?)-(\d[\w.+-]*)")
NAMESPACE = uuid.UUID("5b1c1a52-6a1b-5d0c-9a39-0a6a5f1d3c11")
"""Of serial numbers, which are made from the image's digest: the same image, the same number."""


def sbom(archive: Path, name: str, version: str, digest: str, epoch: int) -> str:
    components = components_of(archive)
    made = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    image = {
        "type": "container",
        "bom-ref": f"{name}@{digest}",
        "name": name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest)}",
        "version": 1,
        "metadata": {"timestamp": made, "component": image},
        "components": components,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def components_of(archive: Path) -> list[Component]:
    """Sorted, each once."""
    found: dict[str, Component] = {}
    for path, content in wanted_files(archive).items():
        for component in components_in(path, content):
            found[component["bom-ref"]] = component
    return [found[ref] for ref in sorted(found)]


def wanted_files(archive: Path) -> dict[str, bytes]:
    """Of all layers together: a later one replaces or removes what an earlier one has."""
    files: dict[str, bytes] = {}
    with tarfile.open(archive) as image:
        (manifest,) = json.load(content_of(image, "manifest.json"))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=content_of(image, layer)) as tar:
                for entry in tar:
                    path = entry.name.removeprefix("./")
                    folder, _, last = path.rpartition("/")
                    if last.startswith(".wh."):
                        hide(files, folder, last.removeprefix(".wh."))
                    elif entry.isfile() and any(p.fullmatch(path) for p in (DPKG, PYTHON, JAR)):
                        files[path] = content_of(tar, entry).read()
    return files


def hide(files: dict[str, bytes], folder: str, name: str) -> None:
    """What a layer removes: a file or folder, or with `.opq` all that was in the folder."""
    gone = folder if name == ".wh..opq" else "/".join(filter(None, (folder, name)))
    for path in [p for p in files if p == gone or p.startswith(f"{gone}/")]:
        del files[path]


def content_of(tar: tarfile.TarFile, entry: str | tarfile.TarInfo) -> IO[bytes]:
    found = tar.extractfile(entry)
    assert found is not None, entry
    return found


def components_in(path: str, content: bytes) -> Iterator[Component]:
    if DPKG.fullmatch(path):
        yield debian(content)
    elif PYTHON.fullmatch(path):
        yield python(content)
    elif jar := JAR.fullmatch(path):
        yield from java(jar[1], content)


def debian(content: bytes) -> Component:
    fields = email.parser.BytesHeaderParser().parsebytes(content)
    name, version = str(fields["Package"]), str(fields["Version"])
    more = f"?arch={fields['Architecture']}&distro=debian-12"
    return component("deb/debian", name, version, more)


def python(content: bytes) -> Component:
    fields = email.parser.BytesHeaderParser().parsebytes(content)
    name, version = str(fields["Name"]), str(fields["Version"])
    made = component("pypi", re.sub(r"[-_.]+", "-", name).lower(), version)
    if licensed := fields["License-Expression"]:
        made["licenses"] = [{"expression": str(licensed)}]
    return made


def java(file: str, content: bytes) -> Iterator[Component]:
    """By Maven's own notes in it, of which a shaded jar has several; otherwise by its name."""
    notes = []
    with zipfile.ZipFile(io.BytesIO(content)) as jar:
        for name in jar.namelist():
            if name.startswith("META-INF/maven/") and name.endswith("/pom.properties"):
                text = jar.read(name).decode(errors="replace")
                notes.append(dict(re.findall(r"^(\w+)=(.*?)\s*$", text, re.M)))
    complete = [n for n in notes if {"groupId", "artifactId", "version"} <= n.keys()]
    for note in complete:
        yield component(f"maven/{note['groupId']}", note["artifactId"], note["version"])
    if not complete:
        known = JAR_NAME.fullmatch(file)
        yield component("generic", *((known[1], known[2]) if known else (file, "unknown")))


def component(kind: str, name: str, version: str, more: str = "") -> Component:
    purl = f"pkg:{kind}/{quote(name, safe='')}@{quote(version, safe='')}{more}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
