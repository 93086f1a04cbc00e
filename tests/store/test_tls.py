"""
PostgreSQL over TLS, with the variables that the operator gives to every pod: a real server that
wants certificates, and everything that can be wrong with them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from dev.services import Postgres, scratch, wait_until
from fixtures.certificates import Authority
from fixtures.made_resources import outbox_relay
from fixtures.relays import StartRelay
from outbox_core.contract.reasons import ProcessReason, reason_of
from outbox_core.errors import OutboxError, StoreUnavailable, TlsFailed
from outbox_core.store.connection import connect, translated
from outbox_operator.shared.store import SECRETS_PATH, store_files, store_variables

pytestmark = pytest.mark.pg

HOST = "shop-rw.shop.svc"
HBA = """
hostssl all app      127.0.0.1/32 scram-sha-256 clientcert=verify-full
hostssl all postgres 127.0.0.1/32 trust
"""
PASSWORD = "it is right"
CA = {"name": "shop-ca", "key": "ca.crt"}
CERT = {"name": "shop-relay", "key": "tls.crt"}
KEY = {"name": "shop-relay", "key": "tls.key"}


class Guarded:
    """A server as CloudNativePG sets one up: TLS with a CA of its own, and users who have both a
    password and a certificate of that CA."""

    def __init__(self, folder: Path, server: Postgres) -> None:
        self.folder, self.server = folder, server
        self.names = 0

    def trust(self) -> Authority:
        """A CA, whose certificate the server has from now on, and asks its clients for."""
        self.names += 1
        ca = Authority(self.folder / f"ca-{self.names}", "the database's CA")
        issued = ca.issue("server", HOST)
        place = self.server.folder
        for source, name in ((issued.cert, "tls.crt"), (issued.key, "tls.key"), (ca.cert, "ca")):
            shutil.copy(source, place / name)
            shutil.copymode(source, place / name)
            owner = self.server.data.stat()
            os.chown(place / name, owner.st_uid, owner.st_gid)
        self.server.settings |= {
            "ssl": "on",
            "ssl_cert_file": str(place / "tls.crt"),
            "ssl_key_file": str(place / "tls.key"),
            "ssl_ca_file": str(place / "ca"),
        }
        self.server.restart()
        return ca

    def dsn(self, **more: Any) -> str:
        """The address besides, because nobody here knows the host."""
        given: dict[str, Any] = {
            "host": HOST, "hostaddr": "127.0.0.1", "port": self.server.port, "dbname": "shop",
            "user": "app", "password": PASSWORD,
        }  # fmt: skip
        return make_conninfo("", **(given | more))


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with scratch() as folder, Postgres(folder / "pg") as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
            conn.execute("CREATE DATABASE shop")
            found = conn.execute("SHOW hba_file").fetchone()
            assert found is not None
        Path(found[0]).write_text(HBA)
        yield Guarded(folder, server)


@pytest.fixture(scope="module")
def authority(guarded: Guarded) -> Authority:
    return guarded.trust()


@pytest.fixture(scope="module")
def stranger(guarded: Guarded) -> Authority:
    """Another CA, of the same name."""
    return Authority(guarded.folder / "stranger", "the database's CA")


class Pod:
    """What the operator makes of `tls`, with a folder in the place of the mounted Secrets."""

    def __init__(self, folder: Path, **tls: Any) -> None:
        store = {"dsnSecretRef": {"name": "shop-app", "key": "uri"}, "tls": tls}
        relay = outbox_relay(store={"postgresql": store})
        self._folder = folder
        self._files = {str(ref.key): file for file, ref in store_files(relay).items()}
        self.variables = {
            name: value.replace(SECRETS_PATH, str(folder))
            for name, value in store_variables(relay).items()
        }

    def holds(self, files: Mapping[str, Path]) -> None:
        for key, path in files.items():
            target = self._folder / self._files[key]
            shutil.copy(path, target)
            target.chmod(0o440 if os.geteuid() == 0 else 0o400)


def of(authority: Authority, user: str = "app") -> dict[str, Path]:
    issued = authority.issue(user)
    return {"ca.crt": authority.cert, "tls.crt": issued.cert, "tls.key": issued.key}


ALL: dict[str, Any] = {"caSecretRef": CA, "certSecretRef": CERT, "keySecretRef": KEY}


def test_every_command_connects_with_the_pods_variables_alone(
    guarded: Guarded, authority: Authority, tmp_path: Path, start_relay: StartRelay,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`migrate` and `list` as they run without a config, `run` with one; and while it runs all
    certificates are renewed, those of the CA, too."""
    pod = Pod(tmp_path, **ALL)
    pod.holds(of(authority))
    with monkeypatch.context() as patch:
        for name, value in (pod.variables | {"OUTBOX_DSN": guarded.dsn()}).items():
            patch.setenv(name, value)
        for command in ("migrate", "list"):
            done = subprocess.run(
                [sys.executable, "-m", "outbox_relay.cli.main", command],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        relay = start_relay(guarded.dsn(), kafka={"bootstrapServers": "127.0.0.1:1", "topic": "t"})

    def trouble() -> str:
        found: str = relay.status()["reasons"].get("store", "")
        return found

    wait_until(lambda: relay.status()["backlog"] is not None, 30, "it reads the backlog")
    renewed = guarded.trust()
    wait_until(lambda: trouble() == "TlsFailed", 30, "the CA is another")
    pod.holds(of(renewed))
    wait_until(lambda: not trouble(), 30, "it has taken the new ones up")
    assert relay.stop() == 0


@pytest.fixture
def renewed(guarded: Guarded) -> Authority:
    return guarded.trust()


@pytest.mark.parametrize("said", [{}, {"sslmode": "disable"}, {"sslrootcert": "/nowhere"}], ids=str)
def test_the_environment_decides_and_not_the_dsn(
    guarded: Guarded, renewed: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    said: dict[str, str],
) -> None:  # fmt: skip
    pod = Pod(tmp_path, **ALL)
    pod.holds(of(renewed))
    for name, value in pod.variables.items():
        monkeypatch.setenv(name, value)
    with connect(guarded.dsn(**said), "test") as conn:
        mine = "SELECT ssl, client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert conn.execute(mine).fetchone() == (True, "/CN=app")
    # It would be let in as long as nobody looks at the host.
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    with pytest.raises(TlsFailed):
        connect(guarded.dsn(host="elsewhere", sslmode="require"), "test")


def test_what_is_wrong_is_reported_with_its_cure(
    guarded: Guarded, stranger: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = guarded.trust()
    right, theirs = of(ours), of(stranger)
    others = of(ours, "somebody")
    of_strangers = {name: theirs[name] for name in ("tls.crt", "tls.key")}
    tls, password = ProcessReason.TLS_FAILED, ProcessReason.WRONG_PASSWORD
    cases: list[tuple[dict[str, Any], dict[str, Path], str, ProcessReason, str]] = [
        (ALL, right | {"ca.crt": stranger.cert}, HOST, tls, "caSecretRef"),
        ({}, {}, HOST, tls, "caSecretRef"),  # public CAs
        (ALL, right, "elsewhere", tls, "verify-ca"),
        ({"caSecretRef": CA}, {"ca.crt": ours.cert}, HOST, tls, "certSecretRef"),
        (ALL, right | of_strangers, HOST, tls, "certSecretRef"),
        (ALL, right | {"tls.key": others["tls.key"]}, HOST, tls, "certificate and key"),
        (ALL, others, HOST, password, "certificate"),  # the server calls it a wrong password
    ]
    for number, (asked, files, host, reason, cure) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        pod = Pod(folder, **asked)
        pod.holds(files)
        with monkeypatch.context() as patch:
            for name, value in pod.variables.items():
                patch.setenv(name, value)
            with pytest.raises(OutboxError) as caught:
                connect(guarded.dsn(host=host), "test")
        assert reason_of(caught.value) is reason, (number, caught.value)
        assert cure in str(caught.value), (number, caught.value)
        assert PASSWORD not in str(caught.value)


def test_a_key_that_others_may_read_is_refused_by_name(
    guarded: Guarded, renewed: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Pod(tmp_path, **ALL)
    pod.holds(of(renewed))
    for name, value in pod.variables.items():
        monkeypatch.setenv(name, value)
    Path(pod.variables["PGSSLKEY"]).chmod(0o644)
    with pytest.raises(TlsFailed, match="group or world access"):
        connect(guarded.dsn(), "test")


def test_a_server_without_tls_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    for name, value in Pod(tmp_path).variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TlsFailed, match="does not support SSL"):
        connect(postgres.dsn(), "test")


def test_a_lost_connection_over_tls_is_no_matter_of_certificates(
    guarded: Guarded, renewed: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a replay would give up at every failover."""
    pod = Pod(tmp_path, **ALL)
    pod.holds(of(renewed))
    for name, value in pod.variables.items():
        monkeypatch.setenv(name, value)
    conn = connect(guarded.dsn(), "test")
    guarded.server.kill()
    with pytest.raises(StoreUnavailable) as caught, translated():
        conn.execute("SELECT 1")
    monkeypatch.undo()
    guarded.server.start()
    assert reason_of(caught.value) is ProcessReason.STORE_UNREACHABLE, caught.value
