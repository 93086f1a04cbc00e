"""
Usage: python -m dev.cluster COMMAND

  prepare          build what a cluster needs, once; `up` does it too  (--tests: and for tests)
  up               a cluster with the project's images in it; heals what is broken
  down             nothing of it is left  (--any-owner: even if another clone started it)
  status           what runs, and how it is; fails unless all is well
  env              lines for a shell: eval "$(python3 -m dev.cluster env)"
  shell            a shell with kubectl, helm and KUBECONFIG set
  kubectl, helm    run them on this cluster; whatever follows is theirs

Environment:
  OUTBOX_CLUSTER           existing, kind or node; default: kind if Docker answers, otherwise node
  OUTBOX_REGISTRY          where to push images for an existing cluster, for example ghcr.io/me
  OUTBOX_CLUSTER_INSTANCE  the name of another cluster beside the main one
  OUTBOX_CLUSTER_RANGE     the built-in node's addresses, a free /16; default 10.87.0.0/16
"""

import errno
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping

from . import binaries
from .clusters import chosen, exports
from .errors import FULL, ClusterError
from .image import Image
from .progress import say


def main(arguments: list[str]) -> int:
    try:
        code = run(arguments)
        sys.stdout.flush()  # now: when Python ends it is too late to report it
        return code
    except ClusterError as error:
        say(str(error))
        return 1
    except PermissionError as error:
        say(f"{error}\n  the built-in node is root's: use sudo")
        return 1
    except BrokenPipeError:  # of a reader that has seen enough, as in `status | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still unsaid
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        say(f"the disk is full: {error}\n  {FULL}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def run(arguments: list[str]) -> int:
    match arguments:
        case ["prepare", *options] if set(options) <= {"--tests"}:
            chosen(os.environ, loudly=True).prepare()
            binaries.client()
            if options and os.environ.get("OUTBOX_SPARK_OPERATOR") != "existing":
                binaries.spark_operator()
        case ["up"]:
            cluster = chosen(os.environ, loudly=True)
            cluster.prepare()
            binaries.client()  # now, when waiting is expected, not at the first kubectl
            cluster.up()
            cluster.load(built_images())
            say("next: make shell, for kubectl and helm on it")
        case ["down", *options] if set(options) <= {"--any-owner"}:
            chosen(os.environ, loudly=True).down(any_owner=bool(options))
        case ["status"]:
            return 0 if chosen(os.environ).status() else 1
        case ["env"]:
            for name, value in exports(chosen(os.environ), os.environ).items():
                print(f"export {name}={shlex.quote(value)}")
        case ["shell"]:
            shell = os.environ.get("SHELL") or "/bin/sh"
            become([shell], exports(chosen(os.environ), os.environ))
        case ["kubectl" | "helm" as name, *rest]:
            exported = exports(chosen(os.environ), os.environ)
            become([str(binaries.client() / name), *rest], exported)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def become(command: list[str], exported: Mapping[str, str]) -> None:
    os.execve(command[0], command, {**os.environ, **exported})


def built_images() -> Iterator[Image]:
    """Built when first asked for: a cluster that has its own does not ask."""
    from dev.images.build import built
    from dev.images.errors import ImageError

    try:
        yield from built()
    except ImageError as error:
        raise ClusterError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
