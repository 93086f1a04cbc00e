"""The operator is upgraded, removed and installed anew under load: relays do not notice."""

from collections.abc import Iterator

import pytest

from fixtures.installation import Installation
from fixtures.shop import Shop

EVENTS = 5000
MORE = 500
"""While there is no operator at all."""


@pytest.fixture
def release(installed: Installation) -> Iterator[Installation]:
    """As it was, afterwards."""
    yield installed
    installed.install()


def test_relays_do_not_notice_what_helm_does(shop: Shop, release: Installation) -> None:
    shop.apply(replicas=2, ordering="Key")
    shop.wait_settled(2)
    pods, operators = shop.relay_pods(), release.pods
    emitting = shop.emit(EVENTS, seconds=12)
    shop.wait_published(1)

    release.install(log={"level": "debug"})
    release.namespace.wait(lambda: not set(operators) & set(release.pods), 60, "another operator")
    assert '"level": "debug"' in release.log()

    release.uninstall()
    release.namespace.wait(lambda: not release.pods, 60, "no operator")
    shop.finish(emitting, 60)
    shop.finish(shop.emit(EVENTS + MORE), 60)
    arrived = shop.arrived(EVENTS + MORE)
    assert arrived["missing"] == arrived["disorder"] == 0

    release.install()
    assert shop.relay_pods() == pods
    assert shop.restarts() == 0
    shop.patch({"replicas": 1})
    shop.wait_settled(1)
    assert shop.relay_pods() < pods
