"""The command `outbox-relay`: wiring only. `main` is where it starts."""
