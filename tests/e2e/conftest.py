"""What the tests on a real cluster share; they are marked `cluster`, all of them."""

from pathlib import Path

import pytest

from fixtures.cluster import (
    cluster,
    images,
    kube,
    namespace,
    pause_image,
    probe_image,
    pytest_runtest_makereport,
)
from fixtures.installation import installed
from fixtures.shop import backends, shop
from fixtures.spark_operator import spark_operator

__all__ = [
    "backends",
    "cluster",
    "images",
    "installed",
    "kube",
    "namespace",
    "pause_image",
    "probe_image",
    "pytest_runtest_makereport",
    "shop",
    "spark_operator",
]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                # More than any wait inside, which says what it has waited for; and not of what is
                # made for all of them, which the first one waits for.
                item.add_marker(pytest.mark.timeout(400, func_only=True))
