"""What enters a relay process (settings) and what leaves it (its report)."""
