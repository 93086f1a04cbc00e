"""TLS and login, and that a secret stays one."""

import logging
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.smtp.mail import Mailbox, MailServer, MakePublisher, letter
from dev.services import Exim
from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.values import SecretRef
from outbox_core.errors import BrokerRefused, PublisherError, SettingsError
from outbox_core.model.attempt import Acked, ErrorClass, Refused

pytestmark = pytest.mark.smtp

WRONG = "correct-horse-battery-staple"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{Exim.password}\n")
    return file


@pytest.fixture
def login(password_file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("SMTP_USERNAME", Exim.username)
    return {"username": SecretRef(env="SMTP_USERNAME"), "password": SecretRef(file=password_file)}


@pytest.mark.parametrize("how", ["Required", "Implicit"])
def test_events_go_through_tls_and_login(
    mail_server: MailServer,
    mailbox: Mailbox,
    make_publisher: MakePublisher,
    login: dict[str, Any],
    how: str,
) -> None:
    exim = mail_server.exim
    port = exim.port if how == "Required" else exim.implicit_port
    publisher = make_publisher(start_tls=how, port=port, **login)
    publisher.probe()
    assert isinstance(publisher.publish([letter(mailbox.address)])[0], Acked)
    (message,) = mailbox.wait_for(1)
    assert "esmtpsa" in message["Received"].lower()  # encrypted, and with a login
    assert "lets us in" in publisher.check([])[0].text


def test_oo_27_a_wrong_password_is_an_outage_that_names_the_cause_and_not_the_password(
    mailbox: Mailbox,
    make_publisher: MakePublisher,
    login: dict[str, Any],
    password_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    password_file.write_text(WRONG)
    publisher = make_publisher(**login)
    (outcome,) = publisher.publish([letter(mailbox.address)])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE
    assert outcome.error.code == "LOGIN_REFUSED"
    with pytest.raises(BrokerRefused, match="refuses the login of relay: 535") as caught:
        publisher.probe()
    told = [
        outcome.error.text,
        caplog.text,
        repr(publisher),
        *traceback.format_exception(caught.value),
    ]
    assert not any(WRONG in text for text in told)
    password_file.write_text(Exim.password)  # corrected, and used without a restart
    assert isinstance(publisher.publish([letter(mailbox.address)])[0], Acked)


def test_a_password_that_cannot_be_sent_is_not_shown(
    make_publisher: MakePublisher, login: dict[str, Any], password_file: Path
) -> None:
    password_file.write_text("pässwörd")
    publisher = make_publisher(**login)
    with pytest.raises(BrokerRefused, match="not ASCII") as caught:
        publisher.probe()
    assert "pässwörd" not in "".join(traceback.format_exception(caught.value))


def test_a_certificate_that_nobody_trusts_is_named(
    mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(tls=None)
    with pytest.raises(PublisherError, match="certificate is not trusted"):
        publisher.probe()
    (outcome,) = publisher.publish([letter(mailbox.address)])
    assert isinstance(outcome, Refused)
    assert outcome.error.kind is ErrorClass.OUTAGE


def test_a_certificate_of_another_host_is_refused(make_publisher: MakePublisher) -> None:
    with pytest.raises(PublisherError, match="certificate is not trusted"):
        make_publisher(host="127.0.0.1").probe()


@pytest.mark.parametrize("field", ["username", "password"])
def test_a_missing_secret_is_a_settings_error(
    make_publisher: MakePublisher, login: dict[str, Any], tmp_path: Path, field: str
) -> None:
    login[field] = SecretRef(file=tmp_path / "absent")
    with pytest.raises(SettingsError, match=rf"smtp\.{field}: cannot read"):
        make_publisher(**login)


def test_a_ca_that_is_none_is_a_settings_error(
    make_publisher: MakePublisher, password_file: Path
) -> None:
    with pytest.raises(SettingsError, match=r"smtp\.tls"):
        make_publisher(tls=Tls(ca_file=password_file))


def test_messages_may_travel_unencrypted_where_the_settings_say_so(
    mailbox: Mailbox, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(start_tls="None", tls=None, delivery_timeout=timedelta(seconds=20))
    assert isinstance(publisher.publish([letter(mailbox.address)])[0], Acked)
    assert "warn" in {r.level for r in publisher.check([]) if "unencrypted" in r.text}
