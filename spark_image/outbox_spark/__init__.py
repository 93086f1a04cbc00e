"""
Pipelines on Spark: so far one, the bulk replay.

`replay` is that pipeline, and `tasks` what it runs on executors. `main`, `engine`, `throttle`,
`report`, `retrying_store`, `exits` and `stopping` know no pipeline: another one is a module beside
`replay`.
"""
