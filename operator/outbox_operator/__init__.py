"""The operator: turns custom resources into children, and the state of those into status."""
