"""The pipelines: bulk replay on Spark."""
