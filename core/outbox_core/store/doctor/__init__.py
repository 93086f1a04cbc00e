"""What `check` asks of a database, and what the answers mean."""
