"""Watches: our objects in the cluster, kept up to date, and whether every watch works."""
