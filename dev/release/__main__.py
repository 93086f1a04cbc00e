"""`python -m dev.release VERSION`: see --help."""

import argparse
import shutil
import sys
from pathlib import Path

from dev.images.build import built
from dev.images.errors import ImageError
from dev.images.progress import step

from .archives import SUMS, write_sums
from .chart import package
from .distributions import build
from .errors import ReleaseError
from .sbom import sbom
from .tree import checked

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("operator", "relay", "spark")


def release(root: Path, version: str, into: Path) -> list[Path]:
    """All of it; what was there before is replaced."""
    commit = checked(root, version)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    made = [package(root, into, commit.epoch), *build(root, into, commit.epoch)]
    for image in built(IMAGES):
        name = f"outbox-{image.name}"
        archive = into / f"{name}-{version}.tar"
        with step(f"{image.name}: copying it, and what is in it"):
            shutil.copyfile(image.archive, archive)
            contents = into / f"{name}-{version}.cdx.json"
            contents.write_text(sbom(archive, name, version, image.digest, commit.epoch))
        made += [archive, contents]
    return [*made, write_sums(into, made)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.release",
        description="Make a release: packaged chart, image archives with what is in them "
        "(CycloneDX), wheel and sdist, and checksums. From a commit, without any registry.",
    )
    parser.add_argument("version", help="as pyproject.toml and Chart.yaml have it")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="default: dist/")
    given = parser.parse_args(arguments)
    try:
        for path in release(ROOT, given.version, given.into):
            print(f"{path.stat().st_size / 1e6:8.1f} MB  {path}")
    except (ReleaseError, ImageError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"check it with: cd {given.into} && sha256sum --check {SUMS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
