"""The relay: claims events from PostgreSQL, publishes them, records what became of each."""

from importlib.metadata import version

__version__ = version("outbox-operator")
