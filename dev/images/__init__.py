"""
The images: operator, relay and Spark, and PostgreSQL and Kafka for demo and tests.

    python -m dev.images            builds what changed: `__main__`, for `make images`
    from dev.images.build import built  the same for the cluster tool, as archives to load

`recipes` lists what is in each image, `keys` when it must be built again, `engines` how (Docker,
or buildah on a `base` of our own), `cache` where it is kept. `steps/` runs inside the builds.
"""
