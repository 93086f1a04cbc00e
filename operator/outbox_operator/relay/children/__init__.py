"""The children of an OutboxRelay. Pure builders, one module for each kind of child."""
