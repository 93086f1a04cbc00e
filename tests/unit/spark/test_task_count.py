"""How many tasks take chunks at the same time."""

from outbox_spark.engine import task_count, task_slots


def test_where_the_driver_does_it_all_spark_knows_its_room() -> None:
    assert task_slots({"spark.master": "local[4]", "spark.executor.instances": "9"}, local=4) == 4


def test_there_is_room_for_a_task_per_core_of_all_executors_that_were_asked_for() -> None:
    conf = {"spark.master": "k8s://https://api", "spark.executor.instances": "3"}
    assert task_slots(conf, local=2) == 3
    assert task_slots({**conf, "spark.executor.cores": "4"}, local=2) == 12
    assert task_slots({**conf, "spark.executor.cores": "4", "spark.task.cpus": "2"}, local=2) == 6


def test_as_many_tasks_as_there_is_room_for() -> None:
    assert task_count({}, local=3, connections=16) == 3


def test_the_connections_are_a_bound_whatever_room_there_is() -> None:
    assert task_count({}, local=400, connections=16) == 16


def test_twins_of_tasks_do_not_go_beyond_the_connections_either() -> None:
    assert task_count({"spark.speculation": "true"}, local=400, connections=16) == 8


def test_one_task_at_the_least() -> None:
    assert task_count({}, local=0, connections=16) == 1
    assert task_count({"spark.speculation": "true"}, local=2, connections=1) == 1
