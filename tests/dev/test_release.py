"""A release: from a clean commit of that version alone, and the same every time."""

import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from dev.cluster import binaries
from dev.release.archives import read_tgz, write_sums, write_tgz
from dev.release.chart import package
from dev.release.distributions import build
from dev.release.errors import ReleaseError
from dev.release.sbom import sbom
from dev.release.tree import checked
from dev.release.values_readme import values

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "outbox-operator"
EPOCH = 1_700_000_000


# What may be released -----------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As small as it can be."""
    chart = tmp_path / "charts" / "outbox-operator"
    chart.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (chart / "Chart.yaml").write_text("version: 1.2.3\nappVersion: 1.2.3\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "all")):
        when = {"GIT_COMMITTER_DATE": f"{EPOCH} +0000"}
        subprocess.run(["git", "-C", tmp_path, *words], check=True, env={**os.environ, **when})
    return tmp_path


def test_a_clean_commit_is_released_with_its_time(clone: Path) -> None:
    assert checked(clone, "1.2.3").epoch == EPOCH


@pytest.mark.parametrize("version", ["", "next", "1.2"])
def test_a_version_is_three_numbers(clone: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match=r"make release VERSION=1\.2\.3"):
        checked(clone, version)


def test_another_version_than_the_projects_is_refused_with_the_cure(clone: Path) -> None:
    with pytest.raises(ReleaseError, match=r"pyproject.toml\D+1\.2\.3\D+1\.2\.4"):
        checked(clone, "1.2.4")
    (clone / "pyproject.toml").write_text('[project]\nversion = "1.2.4"\n')
    with pytest.raises(ReleaseError, match=r"version of Chart.yaml\D+1\.2\.3(.|\n)*set it to"):
        checked(clone, "1.2.4")


def test_changes_that_are_in_no_commit_are_refused_with_the_cure(clone: Path) -> None:
    (clone / "forgotten.py").write_text("")
    with pytest.raises(ReleaseError, match=r"forgotten\.py(.|\n)*commit them"):
        checked(clone, "1.2.3")


# The chart ----------------------------------------------------------------------------------------


def test_the_chart_is_packaged_with_its_crds_and_a_readme_of_every_value(tmp_path: Path) -> None:
    made = package(ROOT, tmp_path, EPOCH)
    files = read_tgz(made)
    for crd in (ROOT / "crds").glob("*.yaml"):
        assert files[f"outbox-operator/files/crds/{crd.name}"] == crd.read_bytes()
    text = files["outbox-operator/README.md"].decode()
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path, _ in values(schema):
        assert f"| `{path}` |" in text
    assert '| `log.level` | `"debug"` or' in text
    helm = [str(binaries.client() / "helm"), "template", "x", str(made)]
    shown = subprocess.run(helm, capture_output=True, text=True, check=True)
    kinds = [o["kind"] for o in yaml.load_all(shown.stdout, yaml.CSafeLoader) if o]
    assert kinds.count("CustomResourceDefinition") == 2


def test_the_chart_is_the_same_whenever_and_wherever_it_is_packaged(tmp_path: Path) -> None:
    elsewhere = tmp_path / "clone"
    for part in ("charts", "crds"):
        shutil.copytree(ROOT / part, elsewhere / part, symlinks=True)
    for path in elsewhere.rglob("*.yaml"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    here = package(ROOT, tmp_path / "here", EPOCH)
    there = package(elsewhere, tmp_path / "there", EPOCH)
    assert here.read_bytes() == there.read_bytes()


# What is in an image ------------------------------------------------------------------------------


def tar_of(files: Mapping[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def jar(**files: str) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as made:
        for name, text in files.items():
            made.writestr(name.replace("__", "/").replace("_properties", ".properties"), text)
    return whole.getvalue()


PACKAGES = "opt/outbox/lib/python3.11/site-packages"
LAYERS = [
    {
        "var/lib/dpkg/status.d/libc6": (
            b"Package: libc6\nVersion: 2.36-9+deb12u10\nArchitecture: amd64\n"
        ),
        "var/lib/dpkg/status.d/libc6.md5sums": b"0  /lib/libc.so.6\n",
        "var/lib/dpkg/status.d/gone": b"Package: gone\nVersion: 1\nArchitecture: all\n",
        f"{PACKAGES}/old-1.dist-info/METADATA": b"Name: old\nVersion: 1\n",
    },
    {
        "var/lib/dpkg/status.d/.wh.gone": b"",
        f"{PACKAGES}/.wh.old-1.dist-info": b"",
        f"{PACKAGES}/Typing_X-4.dist-info/METADATA": (
            b"Name: Typing_X\nVersion: 4\nLicense-Expression: PSF-2.0\n"
        ),
        "opt/spark/jars/zstd-jni-1.5.6-9.jar": jar(
            **{
                "META-INF__maven__com.github.luben__zstd-jni__pom_properties": (
                    "groupId=com.github.luben\nartifactId=zstd-jni\nversion=1.5.6-9\n"
                )
            }
        ),
        "opt/spark/jars/unnamed-2.0.jar": jar(),
    },
]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    manifest = [{"Config": "c.json", "Layers": ["0.tar", "1.tar"]}]
    layers = {f"{n}.tar": tar_of(files) for n, files in enumerate(LAYERS)}
    archive = tmp_path / "image.tar"
    archive.write_bytes(tar_of({"manifest.json": json.dumps(manifest).encode(), **layers}))
    return archive


def test_the_contents_of_an_image_are_those_that_a_container_sees(image: Path) -> None:
    text = sbom(image, "outbox-spark", "1.2.3", f"sha256:{'a' * 64}", EPOCH)
    found = json.loads(text)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert found["metadata"]["component"]["hashes"][0]["content"] == "a" * 64
    assert [c["purl"] for c in found["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        "pkg:generic/unnamed@2.0",
        "pkg:maven/com.github.luben/zstd-jni@1.5.6-9",
        "pkg:pypi/typing-x@4",
    ]
    assert found["components"][-1]["licenses"] == [{"expression": "PSF-2.0"}]
    refs = [c["bom-ref"] for c in found["components"]]
    assert len(refs) == len(set(refs))
    assert text == sbom(image, "outbox-spark", "1.2.3", f"sha256:{'a' * 64}", EPOCH)


# The rest -----------------------------------------------------------------------------------------


def test_an_archive_does_not_depend_on_the_order_of_its_files(tmp_path: Path) -> None:
    files = {"b": b"2", "a/c": b"1"}
    write_tgz(tmp_path / "one.tgz", files, EPOCH)
    write_tgz(tmp_path / "two.tgz", dict(reversed(files.items())), EPOCH)
    assert (tmp_path / "one.tgz").read_bytes() == (tmp_path / "two.tgz").read_bytes()


def test_checksums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    write_sums(tmp_path, [tmp_path / "b", tmp_path / "a"])
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "a: OK\nb: OK\n")


def test_wheel_and_sdist_are_the_same_every_time(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        made.append({p.name: p.read_bytes() for p in build(ROOT, tmp_path / folder, EPOCH)})
    assert [name.rpartition(".")[2] for name in sorted(made[0])] == ["whl", "gz"]
    assert made[0] == made[1]
