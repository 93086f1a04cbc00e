"""Who the relay is to the server, and TLS."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.nats.conftest import MakePublisher
from broker.nats.streams import Admin
from conformance.publisher_contract import SAMPLES, make_claim
from dev.services import Nats
from dev.services.kafka import make_certificates
from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.values import SecretRef
from outbox_core.errors import BrokerRefused
from outbox_core.model.attempt import Acked, ErrorClass, Outcome, Refused
from outbox_relay.publishers.nats.login import crc16, public_nkey

pytestmark = pytest.mark.nats


def text(folder: Path, name: str, content: str) -> SecretRef:
    (folder / name).write_text(content)
    return SecretRef(file=folder / name)


@contextmanager
def server(folder: Path, **settings: Any) -> Iterator[Nats]:
    with Nats(folder / "server", settings) as running:
        yield running


def refused_as(outcome: Outcome) -> tuple[ErrorClass, str]:
    assert isinstance(outcome, Refused)
    return outcome.error.kind, outcome.error.code


def test_a_password_that_changed_is_read_again(
    tmp_path: Path, make_publisher: MakePublisher
) -> None:
    users = [{"user": "relay", "password": "hush-hush"}]
    with server(tmp_path, authorization={"users": users}) as running:
        login: dict[str, Any] = {
            "username": text(tmp_path, "user", "relay"),
            "password": text(tmp_path, "password", "wrong"),
        }
        publisher = make_publisher(servers=(running.url,), timeout=5, **login)
        with pytest.raises(BrokerRefused):
            publisher.probe()
        (outcome,) = publisher.publish([make_claim()])
        assert refused_as(outcome) == (ErrorClass.OUTAGE, "NOT_LET_IN")
        assert "wrong" not in str(outcome)
        (tmp_path / "password").write_text("hush-hush\n")
        Admin(running, login).make("order.>")
        (outcome,) = publisher.publish([make_claim()])
        assert isinstance(outcome, Acked)


def test_a_token_logs_in(tmp_path: Path, make_publisher: MakePublisher) -> None:
    with server(tmp_path, authorization={"token": "t0ken"}) as running:
        token = text(tmp_path, "token", "t0ken")
        make_publisher(servers=(running.url,), token=token).probe()
        with pytest.raises(BrokerRefused):
            make_publisher(servers=(running.url,)).probe()


def seed_of(key: Ed25519PrivateKey, kind: int) -> str:
    """`kind` is that of the public key."""
    seed = 18 << 3
    body = bytes([seed | kind >> 5, (kind & 31) << 3]) + key.private_bytes_raw()
    return base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")


USER, ACCOUNT, OPERATOR = 20 << 3, 0, 14 << 3


def nkey_of(key: Ed25519PrivateKey, kind: int) -> str:
    return public_nkey(key.public_key().public_bytes_raw(), kind)


def jwt(issuer: Ed25519PrivateKey, kind: int, subject: str, nats: dict[str, Any]) -> str:
    """What NATS' own tools would issue."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    claims = {
        **{"jti": "x", "iat": int(time.time()), "iss": nkey_of(issuer, kind), "name": "test"},
        **{"sub": subject, "nats": {"version": 2, **nats}},
    }
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    body = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
    return f"{body}.{part(issuer.sign(body.encode()))}"


def test_an_nkey_seed_logs_in(tmp_path: Path, make_publisher: MakePublisher) -> None:
    key = Ed25519PrivateKey.generate()
    users = [{"nkey": nkey_of(key, USER)}]
    with server(tmp_path, authorization={"users": users}) as running:
        (tmp_path / "seed").write_text(seed_of(key, USER) + "\n")
        make_publisher(servers=(running.url,), credentials_file=tmp_path / "seed").probe()
        (tmp_path / "other").write_text(seed_of(Ed25519PrivateKey.generate(), USER))
        with pytest.raises(BrokerRefused):
            make_publisher(servers=(running.url,), credentials_file=tmp_path / "other").probe()


def test_a_creds_file_logs_in(tmp_path: Path, make_publisher: MakePublisher) -> None:
    operator, account, system, user = (Ed25519PrivateKey.generate() for _ in range(4))
    accounts = [nkey_of(key, ACCOUNT) for key in (account, system)]
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn"), -1)
    limits = {**unlimited, "leaf": -1, "wildcards": True, "mem_storage": -1, "disk_storage": -1}
    settings = {
        "operator": jwt(operator, OPERATOR, nkey_of(operator, OPERATOR), {"type": "operator"}),
        "resolver": "MEMORY",
        "resolver_preload": {
            name: jwt(operator, OPERATOR, name, {"type": "account", "limits": given})
            for name, given in zip(accounts, (limits, unlimited), strict=True)
        },
        "system_account": accounts[1],
    }
    token = jwt(
        account,
        ACCOUNT,
        nkey_of(user, USER),
        {"type": "user", "subs": -1, "data": -1, "payload": -1},
    )
    creds = tmp_path / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed_of(user, USER)}\n------END USER NKEY SEED------\n"
    )
    with server(tmp_path, **settings) as running:
        publisher = make_publisher(servers=(running.url,), credentials_file=creds, timeout=5)
        publisher.probe()
        Admin(running, {"credentials_file": creds}).make("order.>")
        (outcome,) = publisher.publish([make_claim()])
        assert isinstance(outcome, Acked)


def test_rights_on_one_subject_cost_its_events_attempts_and_others_go_on(
    tmp_path: Path, make_publisher: MakePublisher
) -> None:
    rights = {"publish": ["open.>", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*"]}
    users = [
        {"user": "admin", "password": "a"},
        {"user": "relay", "password": "r", "permissions": {**rights, "subscribe": "_INBOX.>"}},
    ]
    logins: dict[str, dict[str, Any]] = {
        name: {
            "username": text(tmp_path, f"{name}-user", name),
            "password": text(tmp_path, f"{name}-password", name[0]),
        }
        for name in ("admin", "relay")
    }
    with server(tmp_path, authorization={"users": users}) as running:
        Admin(running, logins["admin"]).make("open.>", "closed.>")
        publisher = make_publisher(servers=(running.url,), timeout=10, **logins["relay"])
        began = time.monotonic()
        types = ["open.a", "closed.a", "open.a", 'closed.\\"b"', "open.b"]
        outcomes = publisher.publish([make_claim(event_type=name) for name in types])
        assert time.monotonic() - began < 5
        assert [isinstance(o, Acked) for o in outcomes] == [True, False, True, False, True]
        for denied in (outcomes[1], outcomes[3]):
            assert refused_as(denied) == (ErrorClass.TRANSIENT, "NATS_403")


def test_who_may_not_ask_for_streams_waits_where_nobody_answers(
    tmp_path: Path, make_publisher: MakePublisher
) -> None:
    rights = {"publish": "order.>", "subscribe": "_INBOX.>"}
    users = [{"user": "relay", "password": "r", "permissions": rights}]
    login: dict[str, Any] = {
        "username": text(tmp_path, "user", "relay"),
        "password": text(tmp_path, "password", "r"),
    }
    with server(tmp_path, authorization={"users": users}) as running:
        publisher = make_publisher(servers=(running.url,), timeout=5, **login)
        (outcome,) = publisher.publish([make_claim()])
        # There is no stream, or it elects a leader: nobody tells.
        assert refused_as(outcome) == (ErrorClass.DESTINATION, "STREAM_NOT_READY")
        assert "$JS.API.STREAM.NAMES" in str(outcome)


def test_who_may_not_hear_the_answers_publishes_nothing(
    tmp_path: Path, make_publisher: MakePublisher
) -> None:
    rights = {"publish": ">", "subscribe": "other.>"}
    users = [
        {"user": "admin", "password": "a"},
        {"user": "relay", "password": "r", "permissions": rights},
    ]
    logins: dict[str, dict[str, Any]] = {
        name: {
            "username": text(tmp_path, f"{name}-user", name),
            "password": text(tmp_path, f"{name}-password", name[0]),
        }
        for name in ("admin", "relay")
    }
    with server(tmp_path, authorization={"users": users}) as running:
        admin = Admin(running, logins["admin"])
        stream = admin.make("order.>")
        publisher = make_publisher(servers=(running.url,), timeout=5, **logins["relay"])
        began = time.monotonic()
        (outcome,) = publisher.publish([make_claim()])
        assert time.monotonic() - began < 4
        assert refused_as(outcome) == (ErrorClass.OUTAGE, "NOT_LET_IN")
        with pytest.raises(BrokerRefused, match="_INBOX"):
            publisher.probe()
        assert [r.level for r in publisher.check(SAMPLES)] == ["fail"]
        (info,) = admin.ask((f"STREAM.INFO.{stream}", None))
        assert info["state"]["messages"] == 0


def test_an_account_without_jetstream_is_an_outage_and_fails_the_check(
    tmp_path: Path, make_publisher: MakePublisher
) -> None:
    with Nats(tmp_path / "server", {"jetstream": False}) as running:
        publisher = make_publisher(servers=(running.url,), timeout=5)
        (outcome,) = publisher.publish([make_claim()])
        assert refused_as(outcome) == (ErrorClass.OUTAGE, "NO_JETSTREAM")
        assert [r.level for r in publisher.check(SAMPLES)] == ["ok", "fail"]


def test_an_account_without_room_is_an_outage(
    tmp_path: Path, make_publisher: MakePublisher
) -> None:
    limits = {"max_file": 50_000, "max_mem": 0, "max_streams": 5, "max_consumers": 5}
    account = {"jetstream": limits, "users": [{"user": "relay", "password": "r"}]}
    login: dict[str, Any] = {
        "username": text(tmp_path, "user", "relay"),
        "password": text(tmp_path, "password", "r"),
    }
    with server(tmp_path, accounts={"A": account}) as running:
        Admin(running, login).make("order.>")
        alone = make_publisher(servers=(running.url,), timeout=5, atomic="Never", **login)
        outcomes = alone.publish([make_claim(b"x" * 20_000) for _ in range(4)])
        assert [isinstance(o, Acked) for o in outcomes] == [True, True, False, False]
        assert refused_as(outcomes[3]) == (ErrorClass.OUTAGE, "NATS_10002")
        # Of an atomic batch too. (NATS 2.15 does not answer to one that itself crosses the limit.)
        together = make_publisher(servers=(running.url,), timeout=1, **login)
        outcomes = together.publish([make_claim(b"x" * 20_000) for _ in range(2)])
        assert refused_as(outcomes[0])[0] is ErrorClass.OUTAGE


@pytest.fixture(scope="module")
def certificates(server_folder: Path) -> Path:
    folder = server_folder / "nats-tls"
    make_certificates(folder)
    return folder


def test_tls_checks_the_servers_certificate(
    tmp_path: Path, certificates: Path, make_publisher: MakePublisher
) -> None:
    files = {
        "cert_file": str(certificates / "server.crt"),
        "key_file": str(certificates / "server.key"),
    }
    with server(tmp_path, tls=files) as running:
        ca = Tls(ca_file=certificates / "ca.pem")
        secure = running.url.replace("nats://", "tls://")
        for url in (running.url, secure):
            make_publisher(servers=(url,), tls=ca).probe()
        for tls in (Tls(), None):  # not our CA; and the server demands TLS anyway
            with pytest.raises(BrokerRefused, match="certificate"):
                make_publisher(servers=(running.url,), tls=tls).probe()


def test_tls_is_never_left_out_where_it_was_asked_for(
    nats: Nats, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(servers=(nats.url.replace("nats://", "tls://"),), timeout=3)
    (outcome,) = publisher.publish([make_claim()])
    assert refused_as(outcome)[0] is ErrorClass.OUTAGE
