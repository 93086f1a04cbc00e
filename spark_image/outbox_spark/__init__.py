"""The pipelines: bulk replay on Spark."""

from importlib.metadata import version

__version__ = version("outbox-operator")
