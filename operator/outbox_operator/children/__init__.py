"""Children: what a resource becomes in the cluster. Pure builders, one file for each kind."""
