"""
Slots: how many tasks take chunks at the same time.

Called by `engine`. Pure. Every task needs a connection to the database, so Spark's room for tasks
is one bound and the connections that the replay may have are the other.
"""

from collections.abc import Mapping


def room(conf: Mapping[str, str], local: int) -> int:
    """
    How many tasks Spark has room for, once all its executors have come.

    By what is asked for and not by what has registered: executors come one after the other, and a
    task that finds no room yet waits without harm. `local` is what Spark itself says, which is
    right where the driver does it all.
    """
    master = conf.get("spark.master", "local")
    if master == "local" or master.startswith("local["):
        return local
    instances = int(conf.get("spark.executor.instances", "2"))
    cores = int(conf.get("spark.executor.cores", "1"))
    return instances * cores // int(conf.get("spark.task.cpus", "1"))


def tasks(conf: Mapping[str, str], local: int, connections: int) -> int:
    """Half as many connections may be used where each task can have a speculative twin."""
    doubled = conf.get("spark.speculation", "false").lower() == "true"
    return max(1, min(room(conf, local), connections // 2 if doubled else connections))
