"""The relay: claims events from PostgreSQL, publishes them, records the outcome of each."""
