"""
The publisher of an OutboxRelay: the contract's, but its secrets are keys of Secrets.

A module per kind; `union` lists them, and `settings` beside this package turns them into what the
relay reads: without code of a kind's own, by the names and types of the fields.
"""
