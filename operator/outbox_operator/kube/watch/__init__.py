"""Watches: what we have in the cluster, kept up to date, and whether every watch works."""
