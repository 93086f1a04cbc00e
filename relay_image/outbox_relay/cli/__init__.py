"""The command `outbox-relay`: wiring only. `main` is the entry point."""
