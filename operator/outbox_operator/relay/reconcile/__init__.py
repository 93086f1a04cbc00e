"""Reconcile a relay: gather, decide, apply, report."""
