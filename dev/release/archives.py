"""
Archives and checksums in which only content counts: no owner, no order, no time but the commit's.

Called by `chart` and `__main__`.
"""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

SUMS = "SHA256SUMS"


def write_tgz(path: Path, files: Mapping[str, bytes], epoch: int) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            tar.addfile(entry, io.BytesIO(content))
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(whole.getvalue())


def read_tgz(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]


def write_sums(folder: Path, files: Iterable[Path]) -> Path:
    """As `sha256sum --check` reads it."""
    lines = []
    for path in sorted(files):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        lines.append(f"{digest}  {path.name}\n")
    sums = folder / SUMS
    sums.write_text("".join(lines))
    return sums
