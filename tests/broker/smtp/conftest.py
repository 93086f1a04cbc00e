"""The fixtures of `mail`, for all tests of this folder."""

from broker.smtp.mail import exim, mail_server, mailbox, make_mailbox, make_publisher

__all__ = ["exim", "mail_server", "mailbox", "make_mailbox", "make_publisher"]
