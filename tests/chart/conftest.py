"""A real API server for the tests that ask for it; rendering needs none."""

from pathlib import Path

import pytest

from dev.images.build import built
from fixtures.api_server import apply_definitions
from fixtures.cluster import Kube, cluster, kube, namespace, pytest_runtest_makereport

__all__ = ["cluster", "kube", "namespace", "pytest_runtest_makereport"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "kube" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                # Not of the cluster's start, which the first one waits for.
                item.add_marker(pytest.mark.timeout(120, func_only=True))


@pytest.fixture(scope="session")
def server(kube: Kube) -> Kube:
    """With what crds/ holds."""
    apply_definitions(kube)
    return kube


@pytest.fixture(scope="session")
def operator_image(kube: Kube) -> str:
    """How pods name it."""
    (image,) = built(["operator"])
    return kube.image(image)
