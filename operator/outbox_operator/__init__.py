"""The operator: turns custom resources into children, and their state into status."""
