"""E-mail by SMTP. `registry` calls these two functions."""

from outbox_core.contract.publishers.smtp import SmtpSettings
from outbox_relay.publishers.protocol import Publisher
from outbox_relay.publishers.smtp.publisher import SmtpPublisher


def make(settings: SmtpSettings, in_order: bool) -> Publisher:
    assert not in_order  # the settings refuse it
    return SmtpPublisher(settings)


def validate(settings: SmtpSettings) -> None:
    """Its models see everything."""
