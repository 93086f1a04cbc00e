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
from outbox_operator.program import Operator
from outbox_operator.settings import PREFIX, OperatorSettings, load


def usage() -> argparse.ArgumentParser:
    settings = "\n".join(
        f"  {PREFIX}{name.upper()}\n      {' '.join((field.description or '').split())}"
        for name, field in OperatorSettings.model_fields.items()
    )
    parser = argparse.ArgumentParser(
        "outbox-operator",
        description="Manages OutboxRelays and OutboxReplays until it is stopped."
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
