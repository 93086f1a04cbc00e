"""OutboxReplay as people write it, its rules, and the settings that are derived from it. Pure."""
