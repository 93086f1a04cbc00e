"""Kafka: one node, broker and controller at once (KRaft), from the jars that dev/setup copied."""

import os
import re
import shutil
import signal
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from dev.services.process import Server, ServerError, accepts, are_stopped, free_port, scratch
from dev.services.waiting import wait_until

HERE = Path(__file__).resolve().parent.parent / "kafka"
HEAP = "512m"

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""Half of the CPU time until a broker answers."""
LONG_RUN = ("-XX:+UseG1GC",)
"""Compiles better, which pays off after minutes of load."""
CLASSES = "classes.jsa"
"""Beside the jars: what a broker has loaded once it answers, so that the next one only maps it.
That saves a third of the CPU time of a start."""
FORMATTED = "bootstrap.checkpoint"
"""Beside the jars, too: what formatting writes that is the same for all brokers. Kafka's own tool
for that is a JVM that takes half as long as the broker's start."""

QUIET: dict[str, str | int | float | bool] = {"log_level": 0}
"""librdkafka writes every refused connection to stderr, also those we provoke."""

SMALL = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",  # 50 by default: seconds until the first consumer reads
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",  # a wrong topic name must fail, not make a topic
    "log.cleaner.dedupe.buffer.size": "4194304",  # 128 MB by default, a quarter of our heap
    # After a crash the controller takes the new broker for a second one until this has passed.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    # Otherwise the controller writes a record every half second, only to show that it is alive: the
    # larger half of what an idle broker takes.
    "metadata.max.idle.interval.ms": "0",
}


@dataclass(frozen=True)
class SecureListener:
    """What a client needs for the SASL_SSL listener."""

    bootstrap: str
    ca: Path
    username: str
    password: str


@dataclass(frozen=True)
class ProxiedListener:
    """A listener that sends its clients to a port of which it knows nothing: a proxy's."""

    port: int
    proxy_port: int


class Kafka(Server):
    """`settings` are read at every start: change them and `restart()`."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        with_tls: bool = False,
        with_proxy: bool = False,
        jvm: Sequence[str] = QUICK_START,
    ) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.settings = {**SMALL, **(settings or {})}
        self.secure = (
            SecureListener(
                f"127.0.0.1:{free_port()}", folder / "tls" / "ca.pem", "relay", uuid.uuid4().hex
            )
            if with_tls
            else None
        )
        self.proxied = ProxiedListener(free_port(), free_port()) if with_proxy else None
        self._controller_port = free_port()
        self._libs = find_libs()
        self._java = find_java()
        self._jvm_options = jvm

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def pause(self) -> None:
        """Freeze it: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is sent, not yet obeyed: a thread on another core may answer once more.
        wait_until(lambda: are_stopped(self.pid), 10, "all threads of Kafka stand still")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _prepare(self) -> None:
        fresh = not (self.folder / "data").exists()
        if self.secure and fresh:
            make_certificates(self.folder / "tls")
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        if fresh:
            self._format(properties)

    def _format(self, properties: Path) -> None:
        cluster, directory = _kafka_uuid(), _kafka_uuid()
        formatted = self._libs.parent / FORMATTED
        if not formatted.exists():
            self._run(
                *(*self._jvm("64m", QUICK_START), "kafka.tools.StorageTool", "format"),
                *(f"--cluster-id={cluster}", "--config", properties),
            )
            return
        data = self.folder / "data"
        data.mkdir()
        shutil.copy(formatted, data)
        node = self.settings.get("node.id", "1")
        identity = f"node.id={node}\ndirectory.id={directory}\ncluster.id={cluster}\nversion=1\n"
        (data / "meta.properties").write_text(identity)

    def _properties(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._controller_port}"
        listeners = {"PLAIN": self.bootstrap, "CONTROLLER": controller}
        secure = {}
        if self.secure:
            listeners["SECURE"] = self.secure.bootstrap
            prefix = "listener.name.secure"
            secure = {
                f"{prefix}.ssl.keystore.type": "PEM",
                f"{prefix}.ssl.keystore.location": str(self.folder / "tls" / "server.pem"),
                f"{prefix}.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
                # Kafka's own validator for tests: it takes a token that nobody has signed, and
                # checks that it has not expired.
                f"{prefix}.oauthbearer.sasl.jaas.config": (
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
                ),
                f"{prefix}.plain.sasl.jaas.config": (
                    "org.apache.kafka.common.security.plain.PlainLoginModule required "
                    f'user_{self.secure.username}="{self.secure.password}";'
                ),
            }
        advertised = {}
        if self.proxied:
            told = {k: v for k, v in listeners.items() if k != "CONTROLLER"}
            told["PROXIED"] = f"127.0.0.1:{self.proxied.proxy_port}"
            advertised["advertised.listeners"] = written(told)
            listeners["PROXIED"] = f"127.0.0.1:{self.proxied.port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAIN",
            "listeners": written(listeners),
            **advertised,
            "listener.security.protocol.map": (
                "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,PROXIED:PLAINTEXT"
            ),
            "log.dirs": str(self.folder / "data"),
            **secure,
            **self.settings,
        }

    def _command(self) -> list[str]:
        return [
            *self._jvm(HEAP, self._jvm_options),
            "kafka.Kafka",
            str(self.folder / "server.properties"),
        ]

    def _jvm(self, heap: str, options: Sequence[str]) -> list[str]:
        classes = self._libs.parent / CLASSES
        shared = (f"-XX:SharedArchiveFile={classes}",) if classes.exists() else ()
        return [
            *(self._java, f"-Xmx{heap}", *shared, *options, "-Djava.awt.headless=true"),
            *(f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "-cp"),
            f"{self._libs}/*",
        ]

    def _is_ready(self) -> bool:
        if not accepts(self.port):
            return False
        try:
            admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:  # it listens before it knows its cluster
            return False


def written(listeners: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{at}" for name, at in listeners.items())


NEW_CERTIFICATE = ("openssl", "req", "-x509", "-days", "1", "-newkey", "rsa:2048", "-noenc")


def make_certificates(folder: Path) -> None:
    """An authority, and a server certificate for 127.0.0.1 with its key, both good for a day."""
    folder.mkdir()
    _openssl(
        *(*NEW_CERTIFICATE, "-subj", "/CN=outbox test authority"),
        *("-keyout", folder / "ca.key", "-out", folder / "ca.pem"),
    )
    hosts = ("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    _sign(folder, "server", "127.0.0.1", *hosts)
    # Kafka wants key and chain in one file.
    parts = [folder / "server.key", folder / "server.crt", folder / "ca.pem"]
    (folder / "server.pem").write_text("".join(part.read_text() for part in parts))


def make_client_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Certificate and key of a client of that name, from the authority that is there."""
    return _sign(folder, name, name)


def _sign(folder: Path, file: str, name: str, *more: str) -> tuple[Path, Path]:
    cert, key = folder / f"{file}.crt", folder / f"{file}.key"
    _openssl(
        *(*NEW_CERTIFICATE, "-subj", f"/CN={name}", *more),
        *("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key"),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", cert),
    )
    return cert, key


def _openssl(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ServerError(f"openssl failed:\n{done.stderr}")


def keep_for_later_starts() -> None:
    """Write what a broker loads until it answers, and its format. Called by dev/setup."""
    classes = find_libs().parent / CLASSES
    partial = classes.with_name(f"partial-{os.getpid()}")  # another clone may set up, too
    option = f"-XX:ArchiveClassesAtExit={partial}"
    with scratch() as folder:
        with Kafka(folder / "kafka", jvm=(*QUICK_START, option)) as broker:
            broker.stop_within = 300  # which is when it writes them; a busy machine takes long
        shutil.copy(folder / "kafka" / "data" / FORMATTED, classes.with_name(FORMATTED))
    partial.replace(classes)


def _kafka_uuid() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def find_java() -> str:
    if found := shutil.which("java"):
        return found
    raise ServerError("Java is not installed: apt-get install default-jre-headless (or: make dev)")


def find_libs(server: str = "kafka") -> Path:
    """Of a server that runs from jars, whose shopping list is below dev/."""
    pom = (HERE.parent / server / "pom.xml").read_text()
    version = re.search(rf"<{server}.version>(.*)</{server}.version>", pom)
    assert version
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    libs = cache / "outbox-operator" / f"{server}-{version[1]}" / "libs"
    if not libs.is_dir():
        raise ServerError(f"no {server} in {libs}: run `make dev`")
    return libs
