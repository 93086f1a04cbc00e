"""`python -m dev.images`: build what changed, list what there is; see --help."""

import argparse
import sys

from .build import built, pushed
from .errors import ImageError
from .progress import say
from .recipes import recipes

EPILOG = """\
environment:
  PIP_CERT, REQUESTS_CA_BUNDLE, SSL_CERT_FILE   certificates that builds shall trust
  PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, pip.conf  where Python packages come from
  http_proxy, https_proxy, no_proxy             pass through
  OUTBOX_BASE                                   a Debian 12 image to build on, with your mirrors
  XDG_CACHE_HOME                                where images are kept, default ~/.cache
None of them leaves a trace in an image. More: docs/images.md.
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.images",
        description="Build the images that changed, with Docker, otherwise with buildah.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(recipes())
    parser.add_argument("names", nargs="*", metavar="name", help=f"default: all of {names}")
    parser.add_argument("--push", metavar="REGISTRY", help="and push them, as REGISTRY/outbox-...")
    parser.add_argument(
        "--refresh-base", action="store_true", help="take today's Debian and Python packages"
    )
    given = parser.parse_args(arguments[1:] if arguments[:1] == ["build"] else arguments)
    try:
        images = built(given.names, refresh_base=given.refresh_base)
        for image in images:
            size = image.archive.stat().st_size / 1e6
            print(f"{image.reference:<40} {size:6.0f} MB  {image.digest[:19]}  {image.archive}")
        if given.push:
            print(*pushed(images, given.push), sep="\n")
    except ImageError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; what was finished is kept")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
