"""
The engine: Spark. One application, and in it one job whose tasks take chunks.

Called by `driver`, which looks after the job while it runs. The only module that knows Spark, and
it is entered late: a dry run needs none. Master, executors and all other settings come from
`spark-submit`; where nobody says anything, the driver does it all itself.
"""

import logging
import re
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from functools import partial
from typing import Any

from outbox_core.contract.replay import ReplaySettings
from outbox_core.errors import EngineFailed, OutboxError
from outbox_spark import slots, tasks

log = logging.getLogger("outbox.replay")
logging.getLogger("py4j").setLevel(
    logging.WARNING
)  # each connection to the JVM is not worth a line


class Engine:
    def __init__(self, settings: ReplaySettings) -> None:
        try:
            from pyspark import SparkContext  # not SparkSession: there is no SQL here

            self._spark: Any = SparkContext.getOrCreate()
        except Exception as error:
            raise EngineFailed(f"Spark did not start: {told(error)}") from error
        context = self._spark
        # Its own progress is not ours; at debug it tells where executors are.
        context.setLogLevel("INFO" if settings.log.level == "debug" else "WARN")
        conf = dict(context.getConf().getAll())
        self._tasks = slots.tasks(conf, context.defaultParallelism, settings.connections)
        log.info(
            "Spark %s runs %d tasks on %s",
            *(context.version, self._tasks, context.master),
            extra={"event": "engine-started", "application": context.applicationId},
        )
        self._settings = settings
        self._job: Future[list[OutboxError | None]] = Future()

    def start(self) -> None:
        """Beside us: its end is seen by `wait`."""
        threading.Thread(target=self._run, name="job", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Has the job ended? Its error is raised."""
        try:
            found = self._job.result(seconds)
        except NotYet:
            return False
        if error := next((e for e in found if e is not None), None):
            raise error
        return True

    def stop(self) -> None:
        """With everything that still runs."""
        with suppress(Exception):  # it may be gone already, and that is what is wanted
            self._spark.cancelAllJobs()
        with suppress(Exception):
            self._spark.stop()

    def _run(self) -> None:
        try:
            self._spark.setJobDescription(f"replay {self._settings.id}")  # for its UI
            work = partial(tasks.run, self._settings.model_dump_json(by_alias=True))
            numbers = self._spark.parallelize(range(self._tasks), self._tasks)
            self._job.set_result(numbers.map(work).collect())
        except Exception as error:
            failed = EngineFailed(f"Spark gave the job up: {told(error)}")
            failed.__cause__ = error
            self._job.set_exception(failed)


def told(error: Exception) -> str:
    """What a person wants to know of Spark's many lines: the first, and what a task died of."""
    text = str(getattr(error, "java_exception", None) or error).strip()
    first, *rest = text.splitlines() or [type(error).__name__]
    traceback = re.search(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", text)
    died_of = traceback[1] if rest and traceback else ""
    return f"{first} {died_of}".strip()
