"""The kind OutboxReplay: its spec, its children, and how one is reconciled."""
