"""What `check` reads from a database, and what it means for delivery."""
