"""The event, its lifecycle and the decisions about it: pure values and functions, no IO."""
