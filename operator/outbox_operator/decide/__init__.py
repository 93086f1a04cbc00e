"""Decide: pure functions of a resource and what was seen. No IO, no clock, no chance."""
