"""
The built-in node: a Kubernetes of this machine's own processes, where there is no Docker.

Only `node.BuiltinNode` is for others; how it works is in docs/built-in-node.md.
"""
