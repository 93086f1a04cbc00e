"""What can be known about the mail server without sending: for `probe` and `outbox-relay check`."""

import smtplib
import threading
import time

from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_core.errors import OutboxError
from outbox_relay.publishers.protocol import CheckResult
from outbox_relay.publishers.smtp.connection import Connection
from outbox_relay.publishers.smtp.errors import LETS_NOBODY_IN

LONGEST_SECONDS = 5.0


def enter(settings: SmtpSettings) -> Connection:
    """A new connection, which also shows whether we would be let in now."""
    seconds = min(LONGEST_SECONDS, settings.delivery_timeout.total_seconds())
    opened: list[Connection] = []
    # A limit for each single wait is not enough: a server may send its greeting a byte at a time.

    def cut() -> None:
        for connection in opened:
            connection.cut()

    watchdog = threading.Timer(seconds, cut)
    watchdog.daemon = True
    watchdog.start()
    try:
        return Connection(settings, time.monotonic() + seconds, opened.append)
    finally:
        watchdog.cancel()


def check_smtp(settings: SmtpSettings) -> list[CheckResult]:
    try:
        connection = enter(settings)
    except OutboxError as error:
        return [CheckResult("fail", str(error))]
    try:
        return [*_about(settings, connection), _about_sender(settings, connection)]
    finally:
        connection.close(politely=True)


def _about(settings: SmtpSettings, connection: Connection) -> list[CheckResult]:
    where = f"the mail server {settings.host}:{settings.port}"
    version = connection.tls_version
    how = f"encrypted ({version})" if version else "not encrypted"
    login = ", and lets us in" if settings.username else ""
    findings = [CheckResult("ok", f"{where} answers, {how}{login}")]
    if version is None:
        findings.append(
            CheckResult("warn", "messages travel unencrypted", "set startTls to Required")
        )
    limit = connection.largest_message
    if limit is not None and limit < settings.max_message_bytes:
        text = (
            f"{where} takes {limit} bytes at most, below maxMessageBytes "
            f"({settings.max_message_bytes}): larger messages are refused"
        )
        findings.append(CheckResult("warn", text, "lower maxMessageBytes"))
    if "*" in settings.allowed_recipient_domains:
        text = "allowedRecipientDomains has *: events may write to any address"
        findings.append(CheckResult("warn", text))
    return findings


def _about_sender(settings: SmtpSettings, connection: Connection) -> CheckResult:
    try:
        code, text = connection.try_sender(settings.sender, time.monotonic() + LONGEST_SECONDS)
    except (OSError, smtplib.SMTPException) as error:
        return CheckResult("fail", f"it does not answer when asked about the sender: {error}")
    if 200 <= code < 300:
        return CheckResult("ok", f"it takes messages from {settings.sender}")
    cure = "set a user name and a password" if code in LETS_NOBODY_IN else "set another sender"
    return CheckResult("fail", f"it takes no messages from {settings.sender}: {code} {text}", cure)
