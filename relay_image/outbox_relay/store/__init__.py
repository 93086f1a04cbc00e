"""PostgreSQL: the schema and every statement about it."""
