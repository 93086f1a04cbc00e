"""The cluster: the only IO of the operator. Nothing is decided about a resource here."""
