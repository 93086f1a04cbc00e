"""The schema of the outbox, as SQL. Applied by `store.migrate`."""
