"""What a person is shown of Spark's many lines."""

from outbox_spark.engine import summary

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
    assert summary(RuntimeError("no room")) == "no room"


def test_an_error_without_a_text_is_shown_by_its_kind() -> None:
    assert summary(RuntimeError()) == "RuntimeError"


def test_of_an_aborted_job_the_cause_is_shown_and_not_the_stacks() -> None:
    assert summary(RuntimeError(ABORTED)) == (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 "
        "failed 4 times outbox_core.errors.StoreUnavailable: PostgreSQL: connection refused"
    )
