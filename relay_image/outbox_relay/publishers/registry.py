"""
Which publisher the settings ask for: the only place that knows them all.

They are the fields of `PublisherSettings`. Each is a package of that name beside this module, of
which two functions are used here, `make` and `validate`. A package is imported only when it is
needed, so a process loads only the client of its own broker.
"""

from importlib import import_module
from typing import Any, Protocol, cast

from outbox_core.contract.publishers.union import PublisherSettings
from outbox_core.contract.settings import RelaySettings
from outbox_relay.publishers.protocol import Publisher


class Package(Protocol):
    """A package beside this module; `settings` are those of its own field."""

    def make(self, settings: Any, in_order: bool) -> Publisher:
        """Connects to nothing. Raises SettingsError for what `validate` refuses, and for a secret
        that cannot be read."""

    def validate(self, settings: Any) -> None:
        """Raise SettingsError for what the models cannot see, such as a template; reads nothing,
        connects to nothing."""


def check_publisher(settings: RelaySettings) -> None:
    """Raise SettingsError for what the publisher would refuse; without connecting to anything."""
    package_of(settings.publisher.kind).validate(settings.publisher.chosen)


def make_publisher(settings: RelaySettings) -> Publisher:
    in_order = settings.ordering == "Key"
    return package_of(settings.publisher.kind).make(settings.publisher.chosen, in_order)


def package_of(name: str) -> Package:
    assert name in PublisherSettings.kinds()
    return cast(Package, import_module(f"outbox_relay.publishers.{name}"))
