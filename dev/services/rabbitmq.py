"""
RabbitMQ: one node of its own, with its own epmd, both on loopback alone.

Users, vhosts and rights come from a file that the server loads at its first start, because
`rabbitmqctl` takes a second for each word. Two doors: plain, and with TLS.
"""

import json
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

from dev.services.kafka import make_certificates, make_client_certificate
from dev.services.process import Server, ServerError, accepts, are_stopped, free_port
from dev.services.waiting import wait_until

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
"""Debian's: what it has in PATH insists on a user and folders of the system."""

CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
listeners.ssl.1 = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {folder}/tls/ca.pem
ssl_options.certfile = {folder}/tls/server.crt
ssl_options.keyfile = {folder}/tls/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
load_definitions = {folder}/definitions.json
max_message_size = {largest}
vm_memory_high_watermark.absolute = {memory}
disk_free_limit.absolute = 1MB
log.file = false
log.console = true
log.console.level = warning
"""

PLUGINS = "[rabbitmq_auth_mechanism_ssl]."
"""Logging in by a certificate."""

MEMORY = "4GB"
"""Above which it raises an alarm."""

LARGEST_MESSAGE_BYTES = 2_000_000
"""Smaller than by default, so that a test reaches it quickly."""

USER = "relay"
SECOND_VHOST = "shop"
MAY_NOT_WRITE = "reader"
MAY_WRITE_ORDERS = "orders-only"
GUARDED = "guarded"
"""A topic exchange, to which that user may publish only what begins with `orders.`."""


class Epmd(Server):
    """Where Erlang's nodes find each other. Of our own, or the server would start one that outlives
    it and listens everywhere."""

    stop_signal = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    def _prepare(self) -> None:
        pass

    def _command(self) -> list[str]:
        return ["epmd", "-address", "127.0.0.1", "-port", str(self.port)]

    def _is_ready(self) -> bool:
        return accepts(self.port)


class RabbitMQ(Server):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.tls_port = free_port(), free_port()
        self.password = uuid.uuid4().hex
        """Of every user."""
        self.ca = folder / "tls" / "ca.pem"
        self._node = f"outbox-{self.port}@localhost"
        self._distribution_port = free_port()
        self._epmd = Epmd(folder / "epmd")
        if not (PROGRAMS / "rabbitmq-server").exists():
            raise ServerError("RabbitMQ is not installed: apt-get install rabbitmq-server")

    def client_certificate(self, name: str) -> tuple[Path, Path]:
        """Certificate and key by which a user of that name is let in."""
        return make_client_certificate(self.ca.parent, name)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secure_host(self) -> str:
        return f"127.0.0.1:{self.tls_port}"

    def start(self) -> None:
        self._epmd.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self._epmd.stop()

    def pause(self) -> None:
        """Freeze it: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is sent, not yet obeyed: a thread on another core may answer once more.
        wait_until(lambda: are_stopped(self.pid), 10, "all threads of RabbitMQ stand still")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def write_declared(self) -> None:
        """Let the names of queues and exchanges be on its disk. By itself it acknowledges a
        declaration before, and a queue is lost with its messages if the server is killed within
        half a second."""
        self.control("eval", "mnesia:sync_log().")

    def control(self, *words: str) -> str:
        """`rabbitmqctl`; a second each."""
        done = subprocess.run(
            [PROGRAMS / "rabbitmqctl", "--quiet", *words],
            env={**os.environ, **self._environment()},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ServerError(f"rabbitmqctl {' '.join(words)}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _prepare(self) -> None:
        if not self.ca.exists():
            make_certificates(self.folder / "tls")
        definitions = json.dumps(self._definitions())
        (self.folder / "definitions.json").write_text(definitions)
        (self.folder / "enabled_plugins").write_text(PLUGINS)
        config = CONFIG.format(
            port=self.port,
            tls_port=self.tls_port,
            folder=self.folder,
            largest=LARGEST_MESSAGE_BYTES,
            memory=MEMORY,
        )
        (self.folder / "rabbitmq.conf").write_text(config)

    def _definitions(self) -> dict[str, list[dict[str, object]]]:
        def right(user: str, vhost: str, write: str = ".*") -> dict[str, object]:
            return {"user": user, "vhost": vhost, "configure": ".*", "write": write, "read": ".*"}

        users = (USER, MAY_NOT_WRITE, MAY_WRITE_ORDERS)
        return {
            "vhosts": [{"name": "/"}, {"name": SECOND_VHOST}],
            "users": [{"name": u, "password": self.password, "tags": ""} for u in users],
            "permissions": [
                right(USER, "/"),
                right(USER, SECOND_VHOST),
                right(MAY_NOT_WRITE, "/", write="^$"),
                right(MAY_WRITE_ORDERS, "/"),
            ],
            "exchanges": [
                {
                    "name": GUARDED,
                    "vhost": "/",
                    "type": "topic",
                    "durable": True,
                    "auto_delete": False,
                    "internal": False,
                    "arguments": {},
                }
            ],
            "topic_permissions": [
                {
                    "user": MAY_WRITE_ORDERS,
                    "vhost": "/",
                    "exchange": GUARDED,
                    "write": r"^orders\.",
                    "read": ".*",
                }
            ],
        }

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),  # for the cookie by which rabbitmqctl is let in
            "ERL_EPMD_PORT": str(self._epmd.port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            # So that it becomes the Erlang machine instead of starting one: our signals are for it.
            "RUNNING_UNDER_SYSTEMD": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
            ),
        }

    def _command(self) -> list[str]:
        settings = [f"{name}={value}" for name, value in self._environment().items()]
        env = shutil.which("env")
        assert env
        return [env, *settings, str(PROGRAMS / "rabbitmq-server")]

    def _is_ready(self) -> bool:
        return accepts(self.port) and accepts(self.tls_port)
