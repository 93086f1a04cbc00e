"""NOTIFY as a hint: an idle relay claims at once instead of after its pause."""

import logging

from outbox_core.errors import StoreError
from outbox_core.store.connection import is_pooled, listen, translated
from outbox_relay.worker.context import Context

log = logging.getLogger("outbox.listener")


class Listener:
    def __init__(self, context: Context) -> None:
        self._context = context

    def run(self) -> None:
        """Runs until the process stops. Polling continues: a lost notification only costs time."""
        context = self._context
        while not context.stopping.is_set():
            try:
                self._listen()
            except StoreError:
                context.stopping.wait(1.0)  # the workers report that the store is unavailable
            else:
                return

    def _listen(self) -> None:
        context = self._context
        with context.open_connection("listener") as conn, translated():
            if is_pooled(conn):
                log.warning(
                    "polling.notify needs a direct connection, but there is a pooler in between: "
                    "notifications are not used, only polling",
                    extra={"event": "notify_off"},
                )
                return
            listen(conn)
            while not context.stopping.is_set():
                for notice in conn.notifies(timeout=1.0, stop_after=1):
                    if notice.payload == context.settings.name:
                        context.crew.hint()
