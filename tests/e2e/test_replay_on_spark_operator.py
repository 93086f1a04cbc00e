"""A replay as a SparkApplication, by Kubeflow's Spark operator without its webhook."""

from typing import Any

import pytest

from fixtures.replay_shop import Replays
from fixtures.shop import Shop
from fixtures.spark_operator import GROUP

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("spark_operator")]

SMALL: dict[str, Any] = {"cpu": "100m", "memory": "512Mi"}


def test_where_there_is_a_spark_operator_it_is_the_engine(shop: Shop) -> None:
    replays = Replays(shop)
    replays.open_shop(ordering="Key")
    replays.make_past(events=6000, dead=3000)
    replays.create(rate={"eventsPerSecond": 300}, driver=SMALL, executor={"instances": 2, **SMALL})
    replays.wait_replayed(300, 150)
    status = replays.status()
    assert (status["engine"], status["application"]) == ("SparkApplication", "again-1")
    application = shop.namespace.get(f"{GROUP}/v1beta2", "SparkApplication", "again-1")
    assert application is not None
    assert application["spec"]["restartPolicy"] == {"type": "Never"}
    assert len(replays.pods("executor")) == 2

    (driver,) = replays.pods("driver")
    replays.kill(driver)
    done = replays.wait_phase("Succeeded", 200)
    assert (done["matched"], done["replayed"], done["application"]) == (3000, 3000, "again-2")
    shop.wait_published(6000)
    assert shop.arrived(3000, topic=replays.topic) == {"missing": 0, "again": 0, "disorder": 0}
    assert replays.messages() == 3000
