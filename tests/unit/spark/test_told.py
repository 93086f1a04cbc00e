"""What a person is told of Spark's many lines."""

from outbox_spark.engine import told

ABORTED = """\
org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
    ~~~~~~~^^
outbox_core.errors.StoreUnavailable: PostgreSQL: connection refused

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


def test_one_line_stays_as_it_is() -> None:
    assert told(RuntimeError("no room")) == "no room"


def test_an_error_without_a_text_is_told_by_its_kind() -> None:
    assert told(RuntimeError()) == "RuntimeError"


def test_of_an_aborted_job_the_cause_is_told_and_not_the_stacks() -> None:
    assert told(RuntimeError(ABORTED)) == (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 "
        "failed 4 times outbox_core.errors.StoreUnavailable: PostgreSQL: connection refused"
    )
