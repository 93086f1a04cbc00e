"""
Pipelines on Spark: so far one, the bulk replay.

`replay` is that pipeline, and `tasks` is what it runs on executors. `main`, `engine`, `throttle`,
`report`, `retrying_store`, `exits` and `stopping` do not depend on a pipeline: another pipeline
would be a module beside `replay`.
"""
