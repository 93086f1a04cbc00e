"""`outbox-operator`: reads the settings, and runs until it is stopped."""

import logging
import os
import sys

import kopf

from outbox_operator.handlers import register
from outbox_operator.program import Operator
from outbox_operator.settings import load
from outbox_relay.contract.settings import Log
from outbox_relay.errors import SettingsError
from outbox_relay.observe import logs


def main() -> None:
    try:
        settings = load(os.environ)
    except SettingsError as error:
        sys.exit(f"outbox-operator: {error}")
    logs.set_up(Log(format=settings.log_format, level=settings.log_level))
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event it handles
    registry = kopf.OperatorRegistry()
    register(registry, Operator(settings))
    kopf.run(
        registry=registry,
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )


if __name__ == "__main__":
    main()
