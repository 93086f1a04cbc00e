"""What the programs share: the event model, their contract, and the store."""

from importlib.metadata import version

__version__ = version("outbox-operator")
