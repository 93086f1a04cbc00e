"""Brokers: a package each behind `protocol.Publisher`; `registry` is the only switch."""
