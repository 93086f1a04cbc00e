"""The wait for Spark's job, which a signal may interrupt anywhere."""

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from outbox_spark.engine import Job, Results
from outbox_spark.stopping import StopRequested


def wait_interrupted_at(job: Job, step: int) -> bool:
    """Did `wait` get as far as this step (a line of Python code below it), and was interrupted?"""
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if event == "line":
            steps += 1
            if steps == step:
                sys.settrace(None)
                raise StopRequested
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job.wait(0.001)
    except StopRequested:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupted_wait_is_a_request_to_stop_and_leaves_no_lock_behind() -> None:
    for step in range(1, 1000):
        may_end = threading.Event()

        def work(may_end: threading.Event = may_end) -> Results:
            may_end.wait(10)
            return [None]

        job = Job(work)
        job.start()
        was_interrupted = wait_interrupted_at(job, step)
        assert job.is_running
        may_end.set()
        assert job.wait(10) == [None], f"interrupted at step {step}"
        if not was_interrupted:
            assert step > 1
            return
    pytest.fail("it has no end")


def test_a_job_that_was_never_started_does_not_run() -> None:
    assert not Job(list).is_running
