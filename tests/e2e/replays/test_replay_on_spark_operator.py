"""A replay as a SparkApplication, by Kubeflow's Spark operator without its webhook."""

from typing import Any

import pytest

from fixtures.replay_shop import Replays
from fixtures.shop import Shop
from fixtures.spark_operator import GROUP

pytestmark = [pytest.mark.timeout(700), pytest.mark.usefixtures("spark_operator")]

SMALL: dict[str, Any] = {"cpu": "100m", "memory": "512Mi"}


def test_where_there_is_a_spark_operator_it_is_the_engine(shop: Shop) -> None:
    replays = Replays(shop)
    replays.open_shop(ordering="Key")
    replays.make_past(events=6000, dead=4000)
    # Half a minute at least, so that what is done midway is.
    replays.create(rate={"eventsPerSecond": 120}, driver=SMALL, executor={"instances": 2, **SMALL})
    replays.wait_replayed(200, 200)
    status = replays.status()
    assert (status["engine"], status["application"]) == ("SparkApplication", "again-1")
    application = shop.namespace.get(f"{GROUP}/v1beta2", "SparkApplication", "again-1")
    assert application is not None
    assert application["spec"]["restartPolicy"] == {"type": "Never"}
    shop.namespace.wait(lambda: len(replays.pods("executor")) == 2, 120, "two executors")

    replays.suspend(True)
    replays.wait_phase("Suspended")
    replays.wait_no_pods()
    assert shop.namespace.get(f"{GROUP}/v1beta2", "SparkApplication", "again-1") is None
    (done,) = replays.ledger().values()
    assert 200 <= done < 4000
    replays.suspend(False)
    replays.wait_replayed(done + 200, 200)

    (driver,) = replays.pods("driver")
    replays.kill(driver)
    ended = replays.wait_phase("Succeeded", 300)
    assert (ended["matched"], ended["replayed"], ended["application"]) == (4000, 4000, "again-3")
    shop.wait_published(6000)
    assert replays.tally(replays.topic, 4000) == {
        "messages": 4000,
        "different": 4000,
        "outside": 0,
        "disorder": 0,
    }
