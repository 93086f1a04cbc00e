"""examples/relay-smtp.yaml on a real server, whose certificate is of the test's own CA."""

import pytest

from broker.smtp.mail import Mailbox, MailServer, letter
from conformance.publisher_contract import SAMPLES
from dev.services import Exim
from fixtures.examples import MakeExample
from outbox_core.model.attempt import Acked

pytestmark = pytest.mark.smtp


def test_the_example_publishes(
    mail_server: MailServer, mailbox: Mailbox, make_example: MakeExample
) -> None:
    publisher = make_example(
        "smtp",
        {"username": Exim.username, "password": Exim.password},
        host="localhost",
        port=mail_server.exim.port,
        tls={"caFile": str(mail_server.ca)},
    )
    (outcome,) = publisher.publish([letter(mailbox.address, "Paid")])
    assert isinstance(outcome, Acked), outcome
    (message,) = mailbox.wait_for(1)
    assert (message["Subject"], message["From"]) == ("Paid", "shop@example.com")
    assert not [r for r in publisher.check(SAMPLES) if r.level == "fail"]
