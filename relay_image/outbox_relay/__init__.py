"""The relay: claims events from PostgreSQL, publishes them, records what became of each."""
