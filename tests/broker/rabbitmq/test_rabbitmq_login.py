"""Who is let in, how `check` says it, and that a changed password needs no restart."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.rabbitmq.publishers import Broker, MakePublisher
from conformance.publisher_contract import SAMPLES, make_claim
from dev.services import RabbitMQ
from dev.services.rabbitmq import MAY_NOT_WRITE, SECOND_VHOST, USER
from fixtures.certificates import Authority
from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.errors import BrokerRefused, SettingsError
from outbox_core.model.attempt import Acked, ErrorClass, Refused
from outbox_relay.publishers import rabbitmq as kind
from outbox_relay.publishers.rabbitmq.connection import Connection
from outbox_relay.publishers.rabbitmq.login import Login, addresses
from outbox_relay.publishers.rabbitmq.publisher import RabbitMQPublisher

pytestmark = pytest.mark.rabbitmq

ByCertificate = Callable[..., RabbitMQPublisher]
"""A publisher to this queue, with the certificate of a user of this name."""


def test_a_wrong_password_is_an_outage_until_the_file_has_the_right_one(
    make_publisher: MakePublisher, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    word = tmp_path / "word"
    word.write_text("wrong-Pa55")
    publisher = make_publisher(queue, password={"file": word})
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert "ACCESS_REFUSED" in outcome.error.text
    assert "wrong-Pa55" not in outcome.error.text
    with pytest.raises(BrokerRefused):
        publisher.probe()
    word.write_text(rabbitmq.password)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)


def test_a_vhost_is_used_and_one_that_does_not_exist_lets_nobody_in(
    make_publisher: MakePublisher, broker: Broker
) -> None:
    queue = broker.queue(vhost=SECOND_VHOST)
    publisher = make_publisher(queue, vhost=SECOND_VHOST)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    assert len(broker.read(queue, 1, vhost=SECOND_VHOST)) == 1
    with pytest.raises(BrokerRefused, match="nowhere"):
        make_publisher(queue, vhost="nowhere").probe()


def test_tls_with_a_ca_that_we_trust(
    make_publisher: MakePublisher, rabbitmq: RabbitMQ, broker: Broker, queue: str
) -> None:
    publisher = make_publisher(queue, hosts=rabbitmq.secure_host, tls={"ca_file": rabbitmq.ca})
    batch = [make_claim(b"x" * n * 1000) for n in range(300)]  # of many records of TLS
    assert all(isinstance(o, Acked) for o in publisher.publish(batch))
    assert len(broker.read(queue, 300)) == 300


def test_tls_with_a_ca_that_we_do_not_trust(
    make_publisher: MakePublisher, rabbitmq: RabbitMQ, queue: str
) -> None:
    publisher = make_publisher(queue, hosts=rabbitmq.secure_host, tls={})
    with pytest.raises(BrokerRefused, match="certificate"):
        publisher.probe()


def test_tls_on_the_plain_port_is_an_outage(
    make_publisher: MakePublisher, rabbitmq: RabbitMQ, queue: str
) -> None:
    (outcome,) = make_publisher(queue, tls={}).publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE


@pytest.fixture
def by_certificate(make_publisher: MakePublisher, rabbitmq: RabbitMQ) -> ByCertificate:
    def make(queue: str, name: str, **settings: Any) -> RabbitMQPublisher:
        cert, key = rabbitmq.client_certificate(name)
        return make_publisher(
            queue,
            hosts=rabbitmq.secure_host,
            tls={"ca_file": rabbitmq.ca, "cert_file": cert, "key_file": key},
            **{"username": None, "password": None, **settings},
        )

    return make


def test_a_certificate_logs_in_without_a_password(
    by_certificate: ByCertificate, broker: Broker, queue: str
) -> None:
    publisher = by_certificate(queue, USER)
    publisher.probe()
    assert isinstance(publisher.publish([make_claim()])[0], Acked)
    assert len(broker.read(queue, 1)) == 1


def test_a_certificate_of_nobody_is_an_outage_and_lets_nobody_in(
    by_certificate: ByCertificate, queue: str
) -> None:
    publisher = by_certificate(queue, "stranger")
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert "EXTERNAL" in outcome.error.text  # the server names the mechanism that failed
    with pytest.raises(BrokerRefused):
        publisher.probe()


def test_a_certificate_has_the_rights_of_its_user_and_no_more(
    by_certificate: ByCertificate, broker: Broker, queue: str
) -> None:
    exchange = broker.exchange(**{queue: "#"})
    (outcome,) = by_certificate(queue, MAY_NOT_WRITE, exchange=exchange).publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert "access" in outcome.error.text
    assert not broker.read(queue)


def test_a_name_and_a_password_are_used_beside_a_certificate(
    by_certificate: ByCertificate,
    rabbitmq: RabbitMQ,
    broker: Broker,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THE_NAME", USER)
    monkeypatch.setenv("THE_PASSWORD", rabbitmq.password)
    login = {"username": {"env": "THE_NAME"}, "password": {"env": "THE_PASSWORD"}}
    publisher = by_certificate(queue, "stranger", **login)
    assert isinstance(publisher.publish([make_claim()])[0], Acked)


def test_a_certificate_of_another_authority_is_an_outage(
    make_publisher: MakePublisher, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    cert, key = Authority(tmp_path / "other", "another").issue(USER)
    publisher = make_publisher(
        queue,
        hosts=rabbitmq.secure_host,
        tls={"ca_file": rabbitmq.ca, "cert_file": cert, "key_file": key},
        username=None,
        password=None,
    )
    (outcome,) = publisher.publish([make_claim()])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE


def test_a_server_that_takes_no_certificates_is_said_with_the_cure(rabbitmq: RabbitMQ) -> None:
    # It offers EXTERNAL to those alone who have shown a certificate, which needs TLS.
    (address,) = addresses(RabbitMQSettings(hosts=rabbitmq.host))
    connection = Connection(address, None, 30, time.monotonic() + 10)
    try:
        with pytest.raises(BrokerRefused, match=r"offers PLAIN.* not EXTERNAL: .*_mechanism_ssl"):
            connection.open(Login("EXTERNAL", b""), "/", "")
    finally:
        connection.broken = True
        connection.close()


def test_the_check_says_what_is_there_and_what_cannot_be_asked(
    make_publisher: MakePublisher, broker: Broker, queue: str
) -> None:
    exchange = broker.exchange(**{queue: "#"})
    results = make_publisher("{event_type}", exchange=exchange).check(SAMPLES)
    assert [r.level for r in results] == ["ok", "ok", "warn"]
    assert exchange in results[1].text
    assert "order.created" in results[2].text
    (missing,) = make_publisher("{event_type}", exchange="nowhere").check(SAMPLES)
    assert missing.level == "fail"
    assert "no exchange 'nowhere'" in missing.text


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"routing_key": "{nothing}"}, "no field"),
        ({"routing_key": "ä" * 128}, "255 bytes"),
        ({"vhost": "ä" * 128}, "vhost: it may have at most 255 bytes"),
        ({"exchange": "€" * 100}, "exchange: it may have at most 255 bytes"),
        ({"hosts": "a:1,"}, "neither host nor host:port"),
        ({"hosts": "a:b"}, "neither host nor host:port"),
        ({"hosts": "a:70000"}, "neither host nor host:port"),
        ({"hosts": "::1"}, "neither host nor host:port"),
        ({"hosts": "[::1"}, "neither host nor host:port"),
        ({"hosts": "a,,b"}, "neither host nor host:port"),
        ({"hosts": "a b"}, "neither host nor host:port"),
        ({"hosts": "[a]:1"}, "parts expected"),
        ({"hosts": "a..b"}, "label"),
        ({"hosts": "a" * 64}, "label"),
    ],
)
def test_what_the_models_cannot_see_is_refused_before_anything_is_connected(
    changed: dict[str, str], why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        kind.validate(RabbitMQSettings.model_validate({"hosts": "a", **changed}))


def test_hosts_have_the_usual_ports_unless_they_name_one() -> None:
    plain = RabbitMQSettings(hosts="a, b:1,[::1],[::2]:3")
    assert [str(a) for a in addresses(plain)] == ["a:5672", "b:1", "::1:5672", "::2:3"]
    secure = RabbitMQSettings.model_validate({"hosts": "a", "tls": {}})
    assert [str(a) for a in addresses(secure)] == ["a:5671"]
