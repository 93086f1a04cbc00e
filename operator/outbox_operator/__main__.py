"""`outbox-operator`: reads the settings, and runs until it is stopped."""

import argparse
import os
import sys

import kopf

from outbox_core import __version__
from outbox_core.contract.settings import Log
from outbox_core.errors import SettingsError
from outbox_core.observe import logs
from outbox_operator.handlers import quiet, register
from outbox_operator.kinds import all_kinds
from outbox_operator.program import Operator
from outbox_operator.settings import load, variables


def usage() -> argparse.ArgumentParser:
    settings = "\n".join(
        f"  {name}\n      {' '.join(text.split())}" for name, text in variables().items()
    )
    parser = argparse.ArgumentParser(
        "outbox-operator",
        description=f"Manages resources of the kinds {all_kinds()} until it is stopped."
        "\nIn a pod it uses its service account, elsewhere KUBECONFIG.",
        epilog=f"environment:\n{settings}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def main() -> None:
    usage().parse_args()
    try:
        settings = load(os.environ)
    except SettingsError as error:
        sys.exit(f"outbox-operator: {error}")
    logs.set_up(Log(format=settings.log_format, level=settings.log_level))
    quiet()
    registry = kopf.OperatorRegistry()
    operator = Operator(settings)
    register(registry, operator)
    try:
        kopf.run(
            registry=registry,
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
        )
    except Exception:
        if operator.failure is None:
            raise
        sys.exit(f"outbox-operator: cannot start: {operator.failure}")


if __name__ == "__main__":
    main()
