"""What people and monitoring read: events, backlog, counts, trouble. Never writes."""
