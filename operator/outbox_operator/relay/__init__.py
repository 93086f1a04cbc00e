"""The kind OutboxRelay: its spec, its children, and how one is reconciled."""
