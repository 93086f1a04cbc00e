"""The operator: turns custom resources into children, and their state into status."""

from importlib.metadata import version

__version__ = version("outbox-operator")
