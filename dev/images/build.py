"""
Building what changed, and nothing else.

Called by `__main__` and by the cluster tool, which loads the archives. Decides only which images
are missing: `engines` builds them, `cache` keeps them.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from .cache import Cache, Image, folder
from .commands import CommandFailed
from .engines import choose
from .errors import ImageError
from .handed import Handed, handed
from .keys import key
from .orders import Engine, Order
from .progress import step
from .recipes import ROOT, Recipe, context, recipes, version

__all__ = ["Image", "built", "push", "pushed"]

EPOCH = 1_000_000_000
"""The time of every file in a context: layers are kept by content, and this is part of it."""


def built(names: Sequence[str] = (), *, refresh_base: bool = False) -> list[Image]:
    """These images, or all of them: from the cache where nothing changed, otherwise built now."""
    wanted = select(names)
    cache, given = Cache(folder()), handed(os.environ)
    with cache.lock():
        engine = choose(cache.folder)
        base = engine.base(refresh_base)
        return [_one(recipe, cache, engine, base, given, refresh_base) for recipe in wanted]


def pushed(images: Sequence[Image], registry: str) -> list[str]:
    """Push them there; return their new references."""
    targets = [in_registry(image.reference, registry) for image in images]
    push(dict(zip(targets, images, strict=True)))
    return targets


def push(images: Mapping[str, Image]) -> None:
    """By the references that they shall have."""
    cache = Cache(folder())
    with cache.lock():
        engine = choose(cache.folder)
        for target, image in images.items():
            with step(f"{image.name}: pushing {target}"):
                try:
                    engine.push(image, target, _log(cache, "push"))
                except CommandFailed as failed:
                    login = "docker login" if engine.name == "Docker" else "buildah login"
                    raise ImageError(
                        f"{target} could not be pushed\n{failed}",
                        f"the registry must be in reach, and you must be allowed to write there: "
                        f"{login} {target.partition('/')[0]}",
                    ) from failed


def select(names: Sequence[str]) -> list[Recipe]:
    known = recipes()
    if unknown := set(names) - set(known):
        raise ImageError(
            f"no such image: {', '.join(sorted(unknown))}", f"known: {', '.join(known)}"
        )
    return [recipe for name, recipe in known.items() if name in names or not names]


def in_registry(reference: str, registry: str) -> str:
    """`localhost/outbox-relay:1` in `example.com/team` is `example.com/team/outbox-relay:1`."""
    return f"{registry.rstrip('/')}/{reference.removeprefix('localhost/')}"


def _one(
    recipe: Recipe, cache: Cache, engine: Engine, base: str, given: Handed, afresh: bool
) -> Image:
    reference = recipe.reference(version())
    files = list(context(recipe, ROOT, cache.folder.parent))
    wanted = key(files, base, reference, given.decisive)
    if not afresh and (found := cache.find(recipe.name, wanted, reference)):
        return found
    _must_have_room(cache.folder, recipe)
    with (
        step(
            f"{recipe.name}: building with {engine.name}", f"{recipe.cost} from nothing"
        ) as report,
        TemporaryDirectory(prefix="outbox-images-") as place,
        cache.new(cache.archive(recipe.name, wanted)) as archive,
    ):
        _lay_out(files, Path(place))
        log = _log(cache, recipe.name)
        order = Order(
            *(reference, Path(place) / recipe.dockerfile, Path(place), version(), base),
            *(given, archive, log, afresh),
        )
        engine.build(order, report)
    cache.prune(recipe.name)
    made = cache.find(recipe.name, wanted, reference)
    assert made
    return made


def _lay_out(files: Sequence[tuple[str, bytes, bool]], place: Path) -> None:
    for name, content, executable in files:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)  # whatever the umask of the clone was
        os.utime(path, (EPOCH, EPOCH))


def _log(cache: Cache, name: str) -> Path:
    log = cache.folder / "logs" / f"{name}.log"
    log.unlink(missing_ok=True)
    return log


def _must_have_room(place: Path, recipe: Recipe) -> None:
    free = shutil.disk_usage(place).free / 1e9
    if free < recipe.space:
        raise ImageError(
            f"building the {recipe.name} image takes up to {recipe.space:g} GB meanwhile, and the"
            f" disk of {place} has {free:.1f} GB left",
            "make room there, or set XDG_CACHE_HOME to a folder on another disk",
        )
