"""
`make demo`: the main job, seen once from end to end on a real cluster.

`__main__` reads what was asked for and reports how it ended; `stage` makes the cluster, the images
and the files that are applied; `story` is what is shown, step by step; `terminal` shows it.
`manifests` and `apps` are what runs in the pods: a shop that places orders, and billing, which gets
their events.
"""
