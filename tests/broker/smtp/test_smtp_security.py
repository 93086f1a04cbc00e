"""TLS and login, and that a secret stays one."""

import logging
import ssl
import traceback
from base64 import b64encode
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.smtp.mail import Mailbox, MailServer, MakePublisher, letter
from broker.smtp.scripted import scripted
from dev.services import Exim
from fixtures.certificates import Authority
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


SPELLINGS = [
    Exim.password,
    b64encode(Exim.password.encode()).decode(),
    b64encode(f"\0{Exim.username}\0{Exim.password}".encode()).decode(),
]


@pytest.mark.parametrize("moment", ["PLAIN", "LOGIN", "MAIL", "RCPT", "DATA", "DOT", "RESULT"])
def test_a_server_that_repeats_what_it_was_told_reveals_no_password(
    tmp_path: Path, make_publisher: MakePublisher, login: dict[str, Any], moment: str
) -> None:
    authority = Authority(tmp_path / "ca", "test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server", "localhost"))
    echo = f"{' '.join(SPELLINGS)} was what you said"
    answers = {
        "PLAIN": {"AUTH": f"535 {echo}"},
        "LOGIN": {"AUTH": "334 VXNlcm5hbWU6", SPELLINGS[1].upper(): f"535 {echo}"},
        "RESULT": {"AUTH": "235 ok", "DOT": f"250 {echo}"},
    }.get(moment, {"AUTH": "235 ok", moment: f"550 {echo}"})
    with scripted(context) as server:
        how = "LOGIN" if moment == "LOGIN" else "PLAIN"
        server.extensions = ["test", f"AUTH {how}"]
        server.script = {name: partial(str, answer) for name, answer in answers.items()}
        publisher = make_publisher(
            start_tls="Implicit", port=server.port, tls=Tls(ca_file=authority.cert), **login
        )
        (outcome,) = publisher.publish([letter("a@example.test")])
    assert "was what you said" in str(outcome)  # the rest is shown
    assert not any(spelling.rstrip("=") in str(outcome) for spelling in SPELLINGS)


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
