"""What an OutboxRelay becomes in the cluster. Pure builders, one file for each kind of child."""
