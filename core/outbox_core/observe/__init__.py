"""What can be seen from outside: metrics, health, status, logs."""
