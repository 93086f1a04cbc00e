"""
The images as they are shipped: what is in them, what is not, and that it runs in a strict pod.

Without a cluster: see `fixtures.image_roots`. Needs root, as building without Docker does.
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dev.images.build import Image, built, pushed
from dev.images.cache import folder
from dev.images.engines import choose
from dev.images.handed import Handed, handed
from dev.images.orders import Order
from dev.images.recipes import recipes, version
from dev.services.process import free_port
from dev.services.waiting import wait_until
from fixtures.image_roots import Root, programs, unpack
from fixtures.registry import registry

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # of building from nothing; the tests themselves take seconds
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts root file systems"),
]

NAMES = list(recipes())
WITH_PYTHON = ["relay", "operator", "spark"]
WITH_SHELL = ["spark", "postgres", "kafka"]
NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"


@pytest.fixture(scope="session")
def images() -> dict[str, Image]:
    return {image.name: image for image in built()}


@pytest.fixture(scope="session")
def root_of(images: dict[str, Image]) -> Iterator[Callable[[str], Root]]:
    """The unpacked root of an image, unpacked once."""
    with TemporaryDirectory(prefix="outbox-roots-") as place:
        os.chmod(place, 0o755)
        roots: dict[str, Root] = {}

        def root_of(name: str) -> Root:
            if name not in roots:
                target = Path(place) / name
                target.mkdir()
                roots[name] = unpack(images[name].archive, target)
            return roots[name]

        yield root_of


@pytest.fixture(params=NAMES)
def root(request: pytest.FixtureRequest, root_of: Callable[[str], Root]) -> Root:
    return root_of(request.param)


@pytest.fixture(params=WITH_PYTHON)
def python_root(request: pytest.FixtureRequest, root_of: Callable[[str], Root]) -> Root:
    return root_of(request.param)


# What is in it -------------------------------------------------------------------------------


def test_archives_hold_what_the_tool_says(images: dict[str, Image]) -> None:
    assert list(images) == NAMES
    for image in images.values():
        with tarfile.open(image.archive) as tar:
            file = tar.extractfile("manifest.json")
            assert file
            (manifest,) = json.load(file)
        assert manifest["RepoTags"] == [image.reference]
        assert image.digest.removeprefix("sha256:") in manifest["Config"]


def test_the_relay_s_image_stays_small_with_the_clients_of_every_broker(
    images: dict[str, Image],
) -> None:
    assert images["relay"].archive.stat().st_size < 150_000_000


def test_the_user_is_a_number_and_not_root_and_known_by_name(root: Root) -> None:
    assert root.settings["User"] == "65532:65532"
    assert ":65532:65532:" in (root.folder / "etc/passwd").read_text()


def test_the_labels_are_those_of_the_oci_with_the_project_s_version(root: Root) -> None:
    labels = {
        k.removeprefix("org.opencontainers.image."): v for k, v in root.settings["Labels"].items()
    }
    assert labels["version"] == version()
    assert labels["title"] in {recipe.title for recipe in recipes().values()}
    assert labels["licenses"]
    assert labels["description"]


def test_health_is_left_to_kubernetes(root: Root) -> None:
    assert "Healthcheck" not in root.settings


def test_there_is_no_compiler_and_no_package_manager(root: Root) -> None:
    named = re.compile(r"(pip[\d.]*|apt.*|dpkg.*|gcc.*|cc|c\+\+|g\+\+|ld|make|javac|mvn|conda|uv)")
    found = [
        path
        for path in root.folder.rglob("*")
        # busybox has applets of such names, which do not install anything.
        if named.fullmatch(path.name)
        and os.access(path, os.X_OK)
        and path.is_file()
        and path.resolve().name != "busybox"
    ]
    assert found == []
    assert not list(root.folder.glob("opt/outbox/lib/python3*/site-packages/pip"))


def test_there_is_a_shell_only_where_something_needs_it(
    root_of: Callable[[str], Root],
) -> None:
    with_shell = [
        name
        for name in NAMES
        if any((root_of(name).folder / "usr/bin" / shell).exists() for shell in ("sh", "bash"))
    ]
    assert with_shell == WITH_SHELL


def test_nothing_can_make_its_caller_another_user(root: Root) -> None:
    special = stat.S_ISUID | stat.S_ISGID
    paths = [path for path in root.folder.rglob("*") if not path.is_symlink()]
    assert [path for path in paths if path.stat().st_mode & special] == []


def test_nothing_belongs_to_the_user_that_it_runs_as(root: Root) -> None:
    owners = {path.lstat().st_uid for path in root.folder.rglob("*")}
    assert root.uid not in owners


def test_every_library_that_a_program_wants_is_there(root: Root) -> None:
    found = programs(root.folder)
    assert len(found) > 5
    missing = {
        str(program.relative_to(root.folder)): complaints
        for program in found
        if (complaints := root.complaints_of_the_loader(program))
    }
    assert missing == {}


def test_scanners_find_the_versions_of_debian_s_packages(root: Root) -> None:
    packages = list((root.folder / "var/lib/dpkg/status.d").iterdir())
    assert len(packages) > 5
    for package in packages:
        assert re.search(
            rf"(?s)^Package: {re.escape(package.name)}\n.*^Version: \d", package.read_text(), re.M
        )
    assert "VERSION_CODENAME=bookworm" in (root.folder / "etc/os-release").read_text()


# What is not in it ---------------------------------------------------------------------------


def certificates(text: str) -> set[str]:
    found = re.findall(r"-----BEGIN CERTIFICATE-----(.*?)-----END", text, re.S)
    return {"".join(body.split()) for body in found}


def test_nothing_that_was_handed_in_is_left(images: dict[str, Image]) -> None:
    given = handed(os.environ)
    unwanted = [
        value.encode() for value in given.pip.values() for value in value.split() if len(value) > 6
    ]
    unwanted += [b"/run/secrets/pip.conf", b"/run/secrets/ca.crt"]
    if given.ca:  # of the machine's certificates those that Debian does not have
        mozilla = Path("/usr/share/ca-certificates/mozilla").glob("*.crt")
        common = set().union(*(certificates(path.read_text()) for path in mozilla))
        extra = certificates(given.ca.read_text()) - common
        unwanted += [certificate[:64].encode() for certificate in extra]
    for image in images.values():
        content = image.archive.read_bytes()
        for text in unwanted:
            assert text not in content, f"{image.name} has {text!r}"


def test_a_secret_reaches_the_build_and_not_the_image(
    images: dict[str, Image], tmp_path: Path
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    dockerfile = context / "Dockerfile"
    dockerfile.write_text(
        "ARG BASE\nFROM ${BASE} AS build\n"
        "RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt"
        " grep -q canary-in-a-url /run/secrets/pip.conf"
        " && grep -q canary-in-a-bundle /run/secrets/ca.crt && echo reached >/reached\n"
        "FROM scratch\nCOPY --from=build /reached /\n"
    )
    bundle = tmp_path / "bundle"
    bundle.write_text("canary-in-a-bundle")
    given = Handed(bundle, {"index-url": "https://canary-in-a-url/"}, ())
    engine = choose(folder())
    base = engine.base(refresh=False)
    archive = tmp_path / "image.tar"
    order = Order(
        *("localhost/outbox-canary:1", dockerfile, context, "1", base),
        *(given, archive, tmp_path / "log"),
    )
    engine.build(order, lambda step: None)
    content = archive.read_bytes()
    assert b"reached" in content
    assert b"canary-in" not in content


# A registry ----------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("docker-registry"), reason="apt-get install docker-registry")
def test_images_are_pushed_to_a_registry(images: dict[str, Image], tmp_path: Path) -> None:
    with registry(tmp_path) as address:
        (target,) = pushed([images["postgres"]], f"{address}/team")
        assert target == f"{address}/team/outbox-dev-postgres:{version()}"
        manifest = f"http://{address}/v2/team/outbox-dev-postgres/manifests/{version()}"
        accept = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
        with urlopen(Request(manifest, headers=accept)) as answer:
            assert json.load(answer)["config"]["digest"] == images["postgres"].digest


# Python --------------------------------------------------------------------------------------

OWN = {
    "relay": {"outbox_relay.cli.main", "psycopg", "confluent_kafka", "prometheus_client", "yaml"},
    "operator": {"outbox_operator", "outbox_core.contract.settings", "kopf", "kubernetes"},
    "spark": {"outbox_spark.__main__", "psycopg", "prometheus_client", "pyspark.sql"},
}
OTHERS = {
    "relay": {"outbox_operator", "outbox_spark", "kopf", "kubernetes", "pyspark"},
    "operator": {"outbox_spark", "psycopg", "confluent_kafka", "pyspark"},
    "spark": {"outbox_operator", "kopf", "kubernetes", "confluent_kafka"},
}
NOBODYS = {"pip", "setuptools", "hatchling", "pytest", "mypy", "ensurepip"}

IMPORT = """
import importlib, importlib.metadata, sys
for name in sys.argv[1].split():
    importlib.import_module(name)
for name in sys.argv[2].split():
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{name} is here")
print(importlib.metadata.version("outbox-operator"))
"""


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_an_image_has_the_dependencies_of_its_own_extra_and_no_other(
    name: str, root_of: Callable[[str], Root]
) -> None:
    done = root_of(name).run(
        "python", "-c", IMPORT, " ".join(OWN[name]), " ".join(OTHERS[name] | NOBODYS)
    )
    assert (done.returncode, done.stdout.strip()) == (0, version()), done.stderr


def test_bytecode_is_ready_made(python_root: Root) -> None:
    sources = [
        path
        for top in ("usr/lib/python3.11", "opt/outbox/lib")
        for path in (python_root.folder / top).rglob("*.py")
    ]
    assert len(sources) > 500
    lacking = [
        path
        for path in sources
        if not (path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc").exists()
    ]
    assert lacking == []


def test_python_speaks_utf_8_and_knows_time_zones(python_root: Root) -> None:
    done = python_root.run(
        *("python", "-c"),
        "import locale, sys, zoneinfo; print(sys.stdout.encoding, sys.getfilesystemencoding(),"
        " locale.getpreferredencoding(), zoneinfo.ZoneInfo('Europe/Berlin'))",
    )
    assert done.stdout.split() == ["utf-8", "utf-8", "UTF-8", "Europe/Berlin"], done.stderr


def test_public_certificates_are_there(python_root: Root) -> None:
    done = python_root.run(
        *("python", "-c"),
        "import ssl; print(len(ssl.create_default_context().get_ca_certs()))",
    )
    assert int(done.stdout) > 100


# The programs --------------------------------------------------------------------------------


def test_the_relay_starts(root_of: Callable[[str], Root]) -> None:
    done = root_of("relay").run("outbox-relay", "--version")
    assert done.stdout == f"outbox-relay, version {version()}\n", done.stderr


def test_the_operator_starts(root_of: Callable[[str], Root]) -> None:
    """As far as its settings: there is no cluster here. tests/chart starts it in one."""
    root = root_of("operator")
    done = root.run(*root.settings["Entrypoint"], environ={"OUTBOX_OPERATOR_WORKERS": "none"})
    assert done.returncode == 1
    assert "workers: Input should be a valid integer" in done.stderr


@contextmanager
def running(
    root: Root, *command: str, log: Path, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as file:
        process = root.start(*command, stdout=file, stderr=subprocess.STDOUT, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def volume() -> Iterator[Path]:
    """An emptyDir. Not pytest's folder, which other users cannot enter."""
    with TemporaryDirectory(prefix="outbox-volume-", ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o755)
        yield Path(place)


def test_postgres_serves_is_durable_and_keeps_its_data(
    root_of: Callable[[str], Root], volume: Path
) -> None:
    root, port, log = root_of("postgres"), free_port(), volume / "log"
    dsn = f"postgresql://orders:s3cret%27@127.0.0.1:{port}/shop"

    def connects() -> bool:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            return False
        return True

    environ = {"POSTGRES_USER": "orders", "POSTGRES_PASSWORD": "s3cret'", "POSTGRES_DB": "shop"}
    for expected in (0, 1):
        with running(
            *(root, "-c", f"port={port}"),
            log=log,
            environ=environ,
            volumes={"/var/lib/postgresql": volume / "data"},
        ) as process:
            wait_until(connects, 30, "PostgreSQL")
            with psycopg.connect(dsn) as conn:
                conn.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
                assert conn.execute("SELECT count(*) FROM kept").fetchone() == (expected,)
                conn.execute("INSERT INTO kept VALUES (1)")
                for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                    row = conn.execute("SELECT current_setting(%s)", (setting,)).fetchone()
                    assert row == ("on",)
                encoding = conn.execute("SELECT current_setting('server_encoding')").fetchone()
                assert encoding == ("UTF8",)
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(dsn.replace("s3cret", "guess"))
            # With the image's own signal it ends although somebody is connected.
            with psycopg.connect(dsn):
                root.signal(process, signal.Signals[root.settings["StopSignal"]])
                assert process.wait(20) == 0, log.read_text()


def test_postgres_without_a_password_or_a_volume_says_so(root_of: Callable[[str], Root]) -> None:
    root = root_of("postgres")
    no_password = root.run("entrypoint")
    assert "POSTGRES_PASSWORD: set it: the password of postgres" in no_password.stderr
    no_volume = root.run("entrypoint", environ={"POSTGRES_PASSWORD": "x"})
    assert "cannot write to /var/lib/postgresql: mount a volume there" in no_volume.stderr
    assert no_password.returncode != 0
    assert no_volume.returncode != 0


def test_kafka_serves_and_keeps_its_data(root_of: Callable[[str], Root], volume: Path) -> None:
    root, port, controller, log = root_of("kafka"), free_port(), free_port(), volume / "log"
    client: dict[str, str | int | float | bool] = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "log_level": 0,
    }

    def has_broker() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return bool(AdminClient(client).list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    listeners = f"PLAIN://127.0.0.1:{port},CONTROLLER://localhost:{controller}"
    overrides = (
        *("--override", f"listeners={listeners}"),
        *("--override", f"controller.quorum.voters=1@localhost:{controller}"),
    )
    for life in (1, 2):
        with running(
            *(root, *overrides),
            log=log,
            environ={"KAFKA_ADVERTISED": f"127.0.0.1:{port}"},
            volumes={"/var/lib/kafka": volume / "data"},
        ) as process:
            wait_until(has_broker, 60, "Kafka")
            if life == 1:
                topic = NewTopic("orders", num_partitions=1, replication_factor=1)
                admin = AdminClient(client)  # it must outlive its answer
                admin.create_topics([topic])["orders"].result(10)
                # zstd unpacks a library of its own, for which there must be a place.
                producer = Producer({**client, "acks": "all", "compression.type": "zstd"})
                producer.produce("orders", b"kept" * 100)
                assert producer.flush(10) == 0
            else:
                consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
                consumer.subscribe(["orders"])
                message = consumer.poll(20)
                consumer.close()
                assert message
                assert message.value() == b"kept" * 100
            root.signal(process, signal.SIGTERM)
            process.wait(30)


def test_kafka_without_a_volume_says_so(root_of: Callable[[str], Root]) -> None:
    done = root_of("kafka").run("/opt/kafka/entrypoint")
    assert "cannot write to /var/lib/kafka: mount a volume there" in done.stderr
    assert done.returncode != 0


# Spark ---------------------------------------------------------------------------------------

JOB = """
import os, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print("arguments", sys.argv[1:])
print("setting", spark.conf.get("spark.outbox.test"))

def task(n):
    import psycopg, outbox_spark
    return n * n, os.getuid()

print("tasks", spark.sparkContext.parallelize(range(4), 2).map(task).collect())
orders = spark.range(1000).selectExpr("id", "id % 7 AS customer")
orders.write.parquet("/tmp/orders")
counts = spark.read.parquet("/tmp/orders").groupBy("customer").count().orderBy("customer")
print("counts", [row["count"] for row in counts.collect()])
spark.stop()
"""


def test_spark_runs_a_driver_as_the_scheduler_starts_it(
    root_of: Callable[[str], Root], volume: Path
) -> None:
    """The arguments and the mounted properties are those of `spark-submit` in cluster mode."""
    conf, tmp = volume / "conf", volume / "tmp"
    conf.mkdir()
    tmp.mkdir()
    (conf / "spark.properties").write_text(
        "spark.master=local[2]\nspark.outbox.test=from the properties\nspark.ui.enabled=false\n"
        "spark.driver.memory=512m\nspark.app.name=smoke\n"
    )
    (tmp / "job.py").write_text(JOB)
    begin = time.monotonic()
    done = root_of("spark").run(
        *("/opt/spark/entrypoint", "driver", "--properties-file"),
        *("/opt/spark/conf/spark.properties", "--class"),
        *("org.apache.spark.deploy.PythonRunner", "local:///tmp/job.py", "one", "two words"),
        volumes={"/opt/spark/conf": conf, "/tmp": tmp},
        environ={
            "SPARK_CONF_DIR": "/opt/spark/conf",
            "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
            "SPARK_USER": "somebody",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "arguments ['one', 'two words']" in done.stdout
    assert "setting from the properties" in done.stdout
    assert "tasks [(0, 65532), (1, 65532), (4, 65532), (9, 65532)]" in done.stdout
    assert "counts [143, 143, 143, 143, 143, 143, 142]" in done.stdout
    assert time.monotonic() - begin < 90


def test_a_driver_runs_as_a_user_whom_the_image_does_not_know(
    root_of: Callable[[str], Root], volume: Path
) -> None:
    """As OpenShift chooses one; the relay's image as well, which has no entrypoint of its own."""
    stranger = replace(root_of("spark"), user=1_000_770_000)
    (volume / "job.py").write_text(
        "import os\nfrom pyspark import SparkContext\n"
        "print('users', SparkContext().parallelize([0]).map(lambda _: os.getuid()).collect())\n"
    )
    done = stranger.run(
        *("/opt/spark/entrypoint", "driver", "--master", "local[1]", "local:///tmp/job.py"),
        volumes={"/tmp": volume},
        environ={"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1", "HOME": "/"},
    )
    assert "users [1000770000]" in done.stdout, done.stderr
    relay = replace(root_of("relay"), user=1_000_770_000)
    said = relay.run("outbox-relay", "list", environ={"HOME": "/", "OUTBOX_DSN": NOWHERE}).stderr
    assert "port 1 failed: Connection refused" in said


def test_spark_runs_the_replay_and_lets_it_hear_that_it_is_to_stop(
    root_of: Callable[[str], Root], volume: Path
) -> None:
    root, log, tmp, etc = root_of("spark"), volume / "log", volume / "tmp", volume / "etc"
    etc.mkdir()
    tmp.mkdir()
    replay = {"id": "shop/again@1", "relay": "orders", "reason": "a test", "http": {"port": 0}}
    (etc / "replay.json").write_text(json.dumps(replay))
    (tmp / "last-words").touch(mode=0o666)
    (tmp / "last-words").chmod(0o666)
    with running(
        *(root, "driver", "--master", "local[1]", "local:///opt/spark/replay.py"),
        log=log,
        environ={
            "OUTBOX_DSN": NOWHERE,
            "OUTBOX_TERMINATION_LOG": "/tmp/last-words",
            "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
        },
        volumes={"/etc/outbox/replay": etc, "/tmp": tmp},
    ) as process:
        wait_until(lambda: "trying again" in log.read_text(), 60, "it asks for its database")
        root.signal(process, signal.SIGTERM)
        assert process.wait(20) == 143, log.read_text()
    words = json.loads((tmp / "last-words").read_text())
    assert (words["id"], words["stage"]) == ("shop/again@1", "Stopped")


def test_spark_starts_an_executor_as_the_scheduler_asks(
    root_of: Callable[[str], Root], volume: Path
) -> None:
    """It gets as far as its driver, who is not there: everything before that worked."""
    port = free_port()
    done = root_of("spark").run(
        *("/opt/spark/entrypoint", "executor"),
        volumes={"/tmp": volume},
        environ={
            "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
            "SPARK_EXECUTOR_ID": "1",
            "SPARK_EXECUTOR_CORES": "1",
            "SPARK_EXECUTOR_MEMORY": "256m",
            "SPARK_APPLICATION_ID": "spark-test",
            "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
            "SPARK_EXECUTOR_POD_NAME": "pod-1",
            "SPARK_RESOURCE_PROFILE_ID": "0",
            "SPARK_CONF_DIR": "/opt/spark/conf",
            "SPARK_USER": "somebody",
            **{f"SPARK_JAVA_OPT_{n}": f"-Doutbox.option{n}={n} of 12" for n in range(12)},
            "SPARK_JAVA_OPT_12": "-XX:+PrintCommandLineFlags",
        },
    )
    assert done.returncode != 0
    assert f"Failed to connect to /127.0.0.1:{port}" in done.stderr + done.stdout, done.stderr
    assert "-XX:MaxHeapSize=268435456" in done.stdout


def test_spark_runs_other_commands_as_they_are(root_of: Callable[[str], Root]) -> None:
    done = root_of("spark").run("/opt/spark/entrypoint", "python", "-c", "print('as it is')")
    assert done.stdout == "as it is\n", done.stderr


def test_spark_s_scheduler_finds_its_kubernetes(
    root_of: Callable[[str], Root], volume: Path
) -> None:
    done = root_of("spark").run(
        *("/opt/spark/entrypoint", "spark-submit", "--master", "k8s://https://127.0.0.1:1"),
        *("--deploy-mode", "cluster", "--conf", "spark.kubernetes.container.image=x"),
        *("--conf", "spark.kubernetes.submission.connectionTimeout=500"),
        *("--conf", "spark.kubernetes.trust.certificates=true", "local:///job.py"),
        volumes={"/tmp": volume},
    )
    assert "KubernetesClientException" in done.stderr, done.stderr
    assert "Connection refused" in done.stderr
