"""Measurements: `make bench` for ours, `make bench-peers` to compare ours with others."""
