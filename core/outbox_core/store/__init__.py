"""PostgreSQL: every statement that a program sends. The schema itself: `outbox_core.schema`."""
