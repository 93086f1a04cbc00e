"""What can be known about the target without publishing: for `outbox-relay check`."""

from collections.abc import Callable, Sequence

from outbox_core.contract.publishers.rabbitmq import RabbitMQSettings
from outbox_core.errors import OutboxError
from outbox_relay.publishers.protocol import CheckResult


def check_rabbitmq(
    settings: RabbitMQSettings, probe: Callable[[], None], keys: Sequence[str]
) -> list[CheckResult]:
    try:
        probe()
    except OutboxError as error:
        return [CheckResult("fail", str(error))]
    found = [CheckResult("ok", f"RabbitMQ at {settings.hosts} lets us in, vhost {settings.vhost}")]
    where = "the default exchange"
    if settings.exchange:
        where = f"exchange {settings.exchange}"
        found.append(CheckResult("ok", f"{where} exists"))
    if keys:
        # Only a warning: whether a key has a queue is known only when an event comes back.
        found.append(
            CheckResult(
                "warn",
                f"whether {where} has a queue for {', '.join(keys)}, and a durable one, cannot be "
                "checked without publishing; an event without a queue is retried, then DEAD",
                "rabbitmqctl list_bindings, and list_queues name durable type",
            )
        )
    return found
