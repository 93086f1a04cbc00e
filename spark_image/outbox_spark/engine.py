"""
The engine: Spark. One application, and in it one job of equal tasks.

Called by a pipeline, which defines what a task does and watches the job while it runs. The only
module that uses Spark, imported only when needed: a dry run needs none. Master, executors and all
other settings come from `spark-submit`; without it, the driver does everything itself.
"""

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from outbox_core.errors import EngineFailed, OutboxError

log = logging.getLogger("outbox.replay")
logging.getLogger("py4j").setLevel(logging.WARNING)  # no line per connection to the JVM

Task = Callable[[int], OutboxError | None]
"""Takes its number. Spark sends it by name, so it is a top-level function, or a `partial` of one.
An error that another try would meet again is returned, because Spark would try again; one that may
go away is raised, so that Spark tries again."""

Results = Sequence[OutboxError | None]
"""One per task."""

KILL_TIMEOUT = "100ms"
"""How long a cancelled task may go on. Spark's default of 2 s is for tasks that must not be killed
anywhere; ours may."""
TASKS_END_SECONDS = 5.0
"""Wait this long for cancelled tasks to end. Kubernetes gives the whole process 30 s by default."""
TASKS_CHECK_SECONDS = 0.05


class Engine:
    def __init__(self, job_name: str, task: Task, connections: int, verbose: bool) -> None:
        """`connections`: at most this many tasks run at the same time, because each needs one."""
        try:
            from pyspark import SparkConf, SparkContext  # not SparkSession: there is no SQL here

            ours = SparkConf().set("spark.python.task.killTimeout", KILL_TIMEOUT)
            self._spark: Any = SparkContext.getOrCreate(ours)
        except Exception as error:
            raise EngineFailed(f"Spark did not start: {summary(error)}") from error
        context = self._spark
        # Spark logs its own progress at INFO, which only helps to find out where executors are.
        context.setLogLevel("INFO" if verbose else "WARN")
        conf = dict(context.getConf().getAll())
        self._tasks = task_count(conf, context.defaultParallelism, connections)
        log.info(
            "Spark %s runs %d tasks on %s",
            *(context.version, self._tasks, context.master),
            extra={"event": "engine-started", "application": context.applicationId},
        )
        self._job_name, self._task = job_name, task
        self._job = Job(self._run)

    def start(self) -> None:
        """Run the job in a thread; `wait` shows when it has ended."""
        self._job.start()

    def wait(self, seconds: float) -> bool:
        """Has the job ended? Raises its error, if it has one. Not to be called after that."""
        found = self._job.wait(seconds)
        if found is None:
            return False
        if error := next((e for e in found if e is not None), None):
            raise error
        return True

    def stop(self) -> None:
        """Stop Spark, and everything that is still running. Without waiting for the tasks,
        executors would go on for a moment after Spark has stopped here."""
        with suppress(Exception):  # it may have stopped already
            self._spark.cancelAllJobs()
        self._wait_for_tasks()
        with suppress(Exception):
            self._spark.stop()

    def _wait_for_tasks(self) -> None:
        deadline = time.monotonic() + TASKS_END_SECONDS
        with suppress(Exception):  # Spark has stopped, or is broken: nobody knows
            while self._is_busy() and time.monotonic() < deadline:
                time.sleep(TASKS_CHECK_SECONDS)

    def _is_busy(self) -> bool:
        """Tasks may start as long as their job runs, and end later than their job."""
        if self._job.is_running:
            return True
        tracker = self._spark.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup()]
        if any(job is None or job.status in ("RUNNING", "UNKNOWN") for job in jobs):
            return True
        stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)

    def _run(self) -> Results:
        try:
            self._spark.setJobDescription(self._job_name)  # for its UI
            numbers = self._spark.parallelize(range(self._tasks), self._tasks)
            found: Results = numbers.map(self._task).collect()
        except Exception as error:
            failed = EngineFailed(f"Spark gave up the job: {summary(error)}")
            failed.__cause__ = error
            return [failed]
        return found


class Job:
    """
    A function in a thread, for which the main thread waits.

    Not a Future: a signal interrupts `wait` by an exception, between any two steps of Python code,
    and within a Condition that leaves a lock behind, or becomes another error. The `get` of this
    queue is a single step.
    """

    def __init__(self, work: Callable[[], Results]) -> None:
        self._results: queue.SimpleQueue[Results] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=lambda: self._results.put(work()), name="job", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> Results | None:
        """What the function returned, once; None if it has not ended."""
        try:
            return self._results.get(timeout=seconds)
        except queue.Empty:
            return None


def task_slots(conf: Mapping[str, str], local: int) -> int:
    """
    How many tasks Spark can run at the same time, once all its executors have started.

    Computed from what is requested and not from what has registered: executors start one after the
    other, and a task may wait for a slot. `local` is what Spark itself reports, which is right if
    the driver does everything.
    """
    master = conf.get("spark.master", "local")
    if master == "local" or master.startswith("local["):
        return local
    instances = int(conf.get("spark.executor.instances", "2"))
    cores = int(conf.get("spark.executor.cores", "1"))
    return instances * cores // int(conf.get("spark.task.cpus", "1"))


def task_count(conf: Mapping[str, str], local: int, connections: int) -> int:
    """Only half of the connections may be used if each task can have a speculative twin."""
    doubled = conf.get("spark.speculation", "false").lower() == "true"
    return max(1, min(task_slots(conf, local), connections // 2 if doubled else connections))


def summary(error: Exception) -> str:
    """The useful part of Spark's many lines: the first, and the error of the failed task."""
    text = str(getattr(error, "java_exception", None) or error).strip()
    first, *rest = text.splitlines() or [type(error).__name__]
    traceback = re.search(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", text)
    task_error = traceback[1] if rest and traceback else ""
    return f"{first} {task_error}".strip()
