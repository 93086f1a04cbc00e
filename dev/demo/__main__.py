"""`make demo`: what was asked for, and how it ended; see --help."""

import argparse
import sys
from pathlib import Path

from dev.cluster.errors import ClusterError
from dev.images.errors import ImageError

from .stage import ROOT, Wish, set_up
from .story import RELAY, Story
from .terminal import DemoError, Terminal

NEXT = """
All of it happened, in {elapsed:.0f} s. The cluster stays up. What to try next:

  make shell                           a shell with kubectl and helm for it; in there:
  kubectl config set-context --current --namespace={namespace}
  kubectl get obr -w                   while you do the following
  kubectl scale deployment/shop --replicas=1
                                       more orders
  kubectl patch obr {relay} --type merge -p '{{"spec": {{"paused": true}}}}'
                                       events are kept and nothing is published; false resumes
  kubectl scale obr {relay} --replicas=3
  kubectl describe obr {relay}         conditions and Events
  kubectl explain obr.spec             every field

To publish the last hour's orders again for a consumer that lost them:

  kubectl explain obrp.spec.select     how to select them
  kubectl get obrp again -o yaml       the replay that you saw, as a beginning

  make demo                            again, from the beginning
  make cluster-down                    nothing of it is left
"""

LOOK = """\
Everything is left as it is. Where to start, in a `make shell`:
  kubectl -n {namespace} get outboxrelays,pods
  kubectl -n {namespace} get events
  kubectl -n {system} logs deployment/outbox-operator
"""


def main(arguments: list[str]) -> int:
    asked = wish(arguments)
    try:
        run(asked)
    except DemoError as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        print(LOOK.format(namespace=asked.namespace, system=asked.system), file=sys.stderr)
        return 1
    except (ClusterError, ImageError) as error:
        print(f"\nThe demo could not begin: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nThe demo was interrupted; what was started stays.", file=sys.stderr)
        return 130
    return 0


def run(wish: Wish) -> None:
    print("A cluster, and the images in it. The first time takes minutes: all is built here.")
    stage = set_up(wish)
    terminal = Terminal(ROOT, stage.environ)
    Story(wish, stage, terminal).tell()
    print(NEXT.format(elapsed=terminal.elapsed, namespace=wish.namespace, relay=RELAY))


def wish(arguments: list[str]) -> Wish:
    parser = argparse.ArgumentParser(
        prog="python -m dev.demo",
        description="Orders, a killed pod, nothing lost, a dead event brought back.",
    )
    parser.add_argument(
        "--namespace", default="outbox-demo", help="of the shop; deleted and created again"
    )
    parser.add_argument("--system", default="outbox-demo-system", help="namespace of the operator")
    parser.add_argument("--orders", type=int, default=1200, help="how many at least")
    parser.add_argument(
        "--no-crds", action="store_true", help="use the custom resource definitions that are there"
    )
    parser.add_argument(
        "--written", type=Path, default=Path("build/demo"), help="where made files go"
    )
    given = parser.parse_args(arguments)
    return Wish(given.namespace, given.system, given.orders, not given.no_crds, given.written)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
