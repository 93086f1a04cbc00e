"""What an OutboxReplay becomes in the cluster. Pure builders, one file for each kind of child."""
