"""
The packaged chart, with the CRDs and a README of its values inside.

Helm makes the package, so that what Helm refuses is not released; it is written again, because Helm
notes when it was made. Called by `__main__`.
"""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from dev.cluster import binaries

from .archives import read_tgz, write_tgz
from .errors import ReleaseError
from .values_readme import readme

CHART = Path("charts/outbox-operator")


def package(root: Path, into: Path, epoch: int) -> Path:
    chart = root / CHART
    with TemporaryDirectory(prefix="outbox-release-") as place:
        helm = [str(binaries.client() / "helm"), "package", str(chart), "--destination", place]
        done = subprocess.run(helm, capture_output=True, text=True)
        if done.returncode != 0:
            raise ReleaseError(f"helm package: {done.stderr.strip()}", "correct the chart")
        (made,) = Path(place).glob("*.tgz")
        files = read_tgz(made)
        name = made.name
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    if not any(path.startswith(f"{described['name']}/files/crds/") for path in files):
        raise ReleaseError("the packaged chart has no CRDs", "see files/crds of the chart")
    files[f"{described['name']}/README.md"] = readme(chart).encode()
    write_tgz(into / name, files, epoch)
    return into / name
