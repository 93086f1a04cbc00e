"""Decisions about an OutboxRelay: pure functions of it and of what was seen. No IO, no clock."""
