"""
A real Kubernetes with one command: `python -m dev.cluster up`, or `make cluster`.

`choice` decides which of three kinds it is; `builtin_node`, `kind_cluster` and `existing_cluster`
are those. `binaries` builds what they need from Go modules, once.
"""
