"""A signal at the worst moment: while the main thread waits, and holds what `stop` needs."""

import subprocess
import sys

import pytest

# Event.wait holds its lock for a moment, before and after it sleeps.
MAIN = """
import signal, sys, threading
from fixtures.made_settings import relay_settings
from outbox_relay.worker import relay

class Unlucky(threading.Event):
    def wait(self, timeout=None):
        with self._cond:
            signal.raise_signal(int(sys.argv[1]))
        return super().wait(timeout)

class Program(relay.RelayProgram):
    def __init__(self, settings):
        super().__init__(settings)
        self._context.stopping = Unlucky()

relay.RelayProgram = Program
sys.exit(relay.run_relay(relay_settings(http={"port": 0})))
"""


@pytest.mark.parametrize("number", ["2", "15"])
def test_a_signal_stops_a_relay_whose_main_thread_is_inside_a_wait(number: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MAIN, number],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path), "OUTBOX_DSN": "host=127.0.0.1 port=1"},
    )
    assert ended.returncode == 0, ended.stderr
