"""Brokers: one file each behind `protocol.Publisher`; `registry` is the only switch."""
