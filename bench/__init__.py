"""Measurements: `make bench` for ours, `make bench-peers` for ours beside others."""
