"""OutboxRelay as people write it, the rules for it, and the settings that are made of it. Pure."""
