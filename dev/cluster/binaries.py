"""
The programs built from Go modules, kept in the user's cache by the hash of what they are made of.

`node` (the servers and the pause image), `client` (kubectl and helm) and `kind`, called by the
three kinds of cluster; `spark_operator`, which tests run beside one; and `nats`, a server for the
tests of its publisher. A folder of the cache is complete or does not exist.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import tiny_image, toolchain
from .errors import FULL, ClusterError, tells_of_a_full_disk
from .progress import say, step
from .tiny_image import PAUSE, PROBE, TinyImage

SOURCE = Path(__file__).resolve().parent / "node"
SPARK_OPERATOR = Path(__file__).resolve().parent / "spark_operator"
SPARK_OPERATOR_MODULE = "github.com/kubeflow/spark-operator/v2"
NATS = Path(__file__).resolve().parent.parent / "nats"
NATS_MODULE = "github.com/nats-io/nats-server/v2"
KIND = "v0.31.0"
"""Its default node image is Kubernetes 1.35, the minor version of the built-in node."""

GIGABYTE = 1 << 30
KEPT = 2
"""Of each program: this one, and the one of the branch that one comes back to."""


def cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "outbox-operator"


def node() -> Path:
    """The folder of `node`."""

    def build(into: Path) -> None:
        _go_build(into, ".")

    inputs = [SOURCE / name for name in ("go.mod", "go.sum", "main.go")]
    what = (
        f"building Kubernetes {required('k8s.io/kubernetes')} from source, "
        "once, about 9 minutes on 2 cores"
    )
    return _cached("node", inputs, what, build, gigabytes=6)


def tiny(reference: str) -> TinyImage:
    """The image of one of our own small programs."""
    name = {PAUSE: "pause", PROBE: "probe"}[reference]

    def build(into: Path) -> None:
        _go_build(into, f"./{name}")
        tiny_image.pack(into / name, reference, architecture())

    inputs = [SOURCE / name / "main.go", Path(tiny_image.__file__)]
    folder = _cached(name, inputs, f"building image {reference}, once, a few seconds", build)
    return TinyImage(reference, folder / f"{name}.tar")


def client() -> Path:
    """The folder of `kubectl` and `helm`."""

    def build(into: Path) -> None:
        _go_build(into, "./client")
        for name in ("kubectl", "helm"):  # it behaves by the name that it is called by
            (into / name).symlink_to("client")

    inputs = [SOURCE / name for name in ("go.mod", "go.sum", "client/main.go")]
    what = (
        f"building kubectl and helm {required('helm.sh/helm/v4')} from source, "
        "once, about 3 minutes on 2 cores"
    )
    return _cached("client", inputs, what, build, gigabytes=4)


def kind() -> Path:
    def build(into: Path) -> None:
        _go(["install", f"sigs.k8s.io/kind@{KIND}"], into, {"GOBIN": str(into)})

    folder = _cached("kind", [], f"building kind {KIND} from source, once, under a minute", build)
    return folder / "kind"


def spark_operator() -> Path:
    """The folder of `operator`, Kubeflow's, and of `crds`, which it needs."""

    def build(into: Path) -> None:
        flags = ["-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", "-s -w"]
        program = f"{SPARK_OPERATOR_MODULE}/cmd/operator"
        _go(["build", *flags, "-o", f"{into}/", program], into, {}, SPARK_OPERATOR)
        # The module's folder is read-only, and may be cleaned away: a copy stays.
        _go(["list", "-m", "-f", "{{.Dir}}", SPARK_OPERATOR_MODULE], into, {}, SPARK_OPERATOR)
        module = Path((into / "build.log").read_text().strip())
        shutil.copytree(
            module / "config" / "crd" / "bases", into / "crds", copy_function=shutil.copyfile
        )

    inputs = [SPARK_OPERATOR / name for name in ("go.mod", "go.sum")]
    version = required(SPARK_OPERATOR_MODULE, SPARK_OPERATOR)
    what = f"building the Spark operator {version} from source, once, about 3 minutes on 2 cores"
    return _cached("spark-operator", inputs, what, build, gigabytes=3)


def nats() -> Path:
    """The folder of `nats-server`."""

    def build(into: Path) -> None:
        flags = ["-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", "-s -w"]
        _go(["build", *flags, "-o", f"{into}/", NATS_MODULE], into, {}, NATS)

    version = required(NATS_MODULE, NATS)
    what = f"building nats-server {version} from source, once, about 2 minutes on 2 cores"
    return _cached("nats", _nats_inputs(), what, build, gigabytes=2)


def built_nats() -> Path:
    """Where `nats` is or would be: for who must not build, such as a test."""
    return cache() / f"nats-{input_hash(_nats_inputs())}" / "nats-server"


def _nats_inputs() -> list[Path]:
    return [NATS / name for name in ("go.mod", "go.sum")]


def required(module: str, source: Path = SOURCE) -> str:
    """The version that go.mod pins."""
    named = rf"^(?:\t|require ){re.escape(module)} (v\S+)"
    found = re.search(named, (source / "go.mod").read_text(), re.M)
    assert found, f"go.mod does not name {module}"
    return found[1]


def architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def link_flags() -> str:
    """What `version` answers; Kubernetes refuses to work with itself unless it knows its own."""
    kubernetes, helm = required("k8s.io/kubernetes"), required("helm.sh/helm/v4")
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    version = "k8s.io/component-base/version"
    values = {
        f"{version}.gitVersion": kubernetes,
        f"{version}.gitMajor": major,
        f"{version}.gitMinor": minor,
        "helm.sh/helm/v4/internal/version.version": helm,
    }
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in values.items())])


def input_hash(inputs: list[Path]) -> str:
    """Not the Go version: a newer Go is no reason to build for nine minutes."""
    total = hashlib.sha256(f"{architecture()} {KIND} {link_flags()}".encode())
    for path in inputs:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def _cached(
    name: str,
    inputs: list[Path],
    what: str,
    build: Callable[[Path], None],
    gigabytes: float = 0.5,
) -> Path:
    folder = cache() / f"{name}-{input_hash(inputs)}"
    if folder.exists():
        with suppress(PermissionError):  # it may be root's, and we only want kubectl
            folder.touch()  # `_prune` goes by when it was last wanted
        return folder
    cache().mkdir(parents=True, exist_ok=True)
    with _alone(cache() / "build.lock"):
        if folder.exists():  # built by whom we waited for
            return folder
        _refuse_on_a_full_disk(gigabytes)
        partial = Path(tempfile.mkdtemp(prefix="partial.", dir=cache()))
        try:
            log = partial / "build.log"
            with step(what, lambda: _compiled(log)):
                build(partial)
            log.unlink()
            partial.chmod(0o755)
            partial.rename(folder)
            _prune(name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _prune(name: str) -> None:
    """A node that runs has its own link to what is dropped here."""
    found = sorted(cache().glob(f"{name}-*/"), key=lambda path: path.stat().st_mtime)
    for old in found[:-KEPT]:
        shutil.rmtree(old)


def _go_build(into: Path, *packages: str) -> None:
    flags = ["-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", link_flags()]
    _go(["build", *flags, "-o", f"{into}/", *packages], into, {})


def _go(arguments: list[str], into: Path, environ: dict[str, str], source: Path = SOURCE) -> None:
    directive = re.search(r"^go (\S+)", (source / "go.mod").read_text(), re.M)
    assert directive
    needed = toolchain.parse(directive[1])
    assert needed
    go = toolchain.find(needed, cache())
    log = into / "build.log"
    with log.open("w") as output:
        done = subprocess.run(
            [go, *arguments],
            cwd=source,
            env={
                **os.environ,
                # No C compiler, no other Go than the one found, no workspace of the user's.
                **{"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"},
                **environ,
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        said = log.read_text(errors="replace")
        tail = "\n".join(said.splitlines()[-15:])
        unreachable = (
            "if a module could not be fetched: `go env GOPROXY` must name a proxy that you can "
            "reach; what was compiled so far is kept for the next attempt"
        )
        cure = FULL if tells_of_a_full_disk(said) else unreachable
        raise ClusterError(f"go {arguments[0]} failed:\n{tail}", cure)


def _compiled(log: Path) -> str:
    """`go build -v` writes a line per package."""
    lines = log.read_text(errors="replace").count("\n") if log.exists() else 0
    return f"{lines} packages compiled" if lines else ""


def _refuse_on_a_full_disk(gigabytes: float) -> None:
    free = shutil.disk_usage(cache()).free / GIGABYTE
    if free < gigabytes:
        raise ClusterError(
            f"{free:.1f} GB are free for {cache()}, building needs {gigabytes:g}",
            "free some space, or set XDG_CACHE_HOME to a folder on another disk",
        )


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for a build that another process began")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
