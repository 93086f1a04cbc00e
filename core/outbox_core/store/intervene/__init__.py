"""What a person may do to events and relays by hand, along the rules and into the audit."""
