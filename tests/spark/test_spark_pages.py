"""What Spark itself offers to those who look into a replay: its pages, and its event log."""

import json
import re
import shlex
import urllib.request
from fnmatch import fnmatch
from pathlib import Path

import pyspark
import pytest

from dev.services import wait_until
from fixtures.outbox import Outbox
from fixtures.replays import StartReplay, make_dead

pytestmark = [pytest.mark.pg, pytest.mark.timeout(300)]

PRUNED = Path(__file__).resolve().parents[2] / "dev" / "images" / "steps" / "spark"


def left_out_of_the_image() -> list[str]:
    """Patterns of jars."""
    step = PRUNED.read_text().partition('cd "$target/jars"\n')[2].replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in step.splitlines()]
    return [word for line in lines if line[:1] == ["rm"] for word in line[2:]]


@pytest.fixture
def as_in_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark without the jars that the image leaves out."""
    found, home, pruned = Path(pyspark.__file__).parent, tmp_path / "spark", left_out_of_the_image()
    (home / "jars").mkdir(parents=True)
    (home / "bin").symlink_to(found / "bin")
    left_out = 0
    for jar in (found / "jars").iterdir():
        if any(fnmatch(jar.name, pattern) for pattern in pruned):
            left_out += 1
        else:
            (home / "jars" / jar.name).symlink_to(jar)
    assert left_out > 20
    monkeypatch.setenv("SPARK_HOME", str(home))


def test_its_pages_answer_and_its_event_log_is_written(
    outbox: Outbox, start_replay: StartReplay, as_in_the_image: None, tmp_path: Path
) -> None:
    make_dead(outbox, outbox.register(), 5000)
    events = tmp_path / "events"
    events.mkdir()
    replay = start_replay(
        outbox.dsn,
        conf={
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",  # 4040 may be somebody else's here
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",  # so that we can read it; compressed by default
        },
        rate={"eventsPerSecond": 100, "yieldToLive": False},
    )
    wait_until(lambda: replay.status()["replayed"] > 0, 120, "it works")
    (port,) = set(re.findall(r"'SparkUI' on port (\d+)", replay.log.read_text()))
    pages = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(f"{pages}/api/v1/applications", timeout=20) as answer:
        (application,) = json.load(answer)
    with urllib.request.urlopen(
        f"{pages}/api/v1/applications/{application['id']}/jobs", timeout=20
    ) as answer:
        (job,) = json.load(answer)
    assert (job["status"], job["description"]) == ("RUNNING", "replay test/replay@12345678")
    with urllib.request.urlopen(f"{pages}/jobs/", timeout=20) as answer:
        assert "replay test/replay@12345678" in answer.read().decode()
    assert replay.stop(30) == 143

    (file,) = events.rglob("events_*")
    happened = {json.loads(line)["Event"] for line in file.read_text().splitlines()}
    assert happened > {
        *("SparkListenerApplicationStart", "SparkListenerJobStart"),
        *("SparkListenerTaskStart", "SparkListenerApplicationEnd"),
    }
