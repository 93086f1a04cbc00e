"""ElasticMQ, which speaks the protocol of Amazon SQS, with its limits, and keeps all in memory."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from dev.services.kafka import QUICK_START, find_java, find_libs
from dev.services.process import Server, accepts, are_stopped, free_port
from dev.services.waiting import wait_until

HEAP = "512m"


class ElasticMq(Server):
    stop_signal = signal.SIGKILL  # it has nothing to save

    def __init__(self, folder: Path, jvm: Sequence[str] = QUICK_START) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._jvm_options = jvm
        self._libs = find_libs("elasticmq")
        self._java = find_java()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def queue_url(self, name: str) -> str:
        return f"{self.url}/000000000000/{name}"

    def pause(self) -> None:
        """Freeze it: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is sent, not yet obeyed: a thread on another core may answer once more.
        wait_until(lambda: are_stopped(self.pid), 10, "all threads of ElasticMQ stand still")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _prepare(self) -> None:
        pass

    def _command(self) -> list[str]:
        settings = {
            "node-address.host": "127.0.0.1",
            "node-address.port": str(self.port),
            "rest-sqs.bind-hostname": "127.0.0.1",
            "rest-sqs.bind-port": str(self.port),
            "rest-sqs.sqs-limits": "strict",
            "rest-stats.enabled": "false",
        }
        return [
            *(self._java, f"-Xmx{HEAP}", *self._jvm_options),
            *(f"-D{name}={value}" for name, value in settings.items()),
            *("-cp", f"{self._libs}/*", "org.elasticmq.server.Main"),
        ]

    def _is_ready(self) -> bool:
        return accepts(self.port)  # it listens when it is ready
