"""What an acknowledgement waits for besides the server's answer: replicas, and the disk."""

import time
from typing import Final

from outbox_core.contract.publishers.redis import RedisWait
from outbox_core.model.attempt import Error, ErrorClass, Refused
from outbox_relay.publishers.redis.errors import ReplyError
from outbox_relay.publishers.redis.wire import Broken, Wire, pack

SHORTEST_WAIT_MS: Final = 1
"""0 would wait forever."""


class Copies:
    def __init__(self, wait: RedisWait) -> None:
        self._wait = wait
        self._needed = (int(wait.aof), wait.replicas)

    def command(self, until: float) -> bytes:
        """The command that follows the transactions; empty if there is nothing to wait for."""
        local, replicas = self._needed
        if not local and not replicas:
            return b""
        if local:
            return pack("WAITAOF", local, replicas, self._milliseconds(until))
        return pack("WAIT", replicas, self._milliseconds(until))

    def shortfall(self, reply: object) -> Refused | None:
        """Why there are too few copies of what the server itself has; None if there are enough."""
        if isinstance(reply, ReplyError):
            return _short(f"Redis has it, but cannot wait for its copies: {reply.text}")
        local, replicas = self._needed
        match reply:
            case [int(disks), int(copies)] if local:
                this = f" and {disks} of {local} server have it on their disks"
            case int(copies) if not local:
                disks, this = local, " have it"
            case _:
                raise Broken.out_of_step()
        if disks >= local and copies >= replicas:
            return None
        return _short(f"Redis has it; {copies} of {replicas} replicas{this} in time")

    def missing(self, wire: Wire, until: float) -> Refused | None:
        """
        Why nothing is sent: the copies could not be made. Until they can, each attempt would store
        every event once more.
        """
        local, replicas = self._needed
        if local:
            try:
                # Tests only whether the server can answer: nothing was written yet that may be
                # missing.
                self.shortfall(wire.ask("WAITAOF", local, 0, SHORTEST_WAIT_MS, until=until))
            except ReplyError as error:
                return Refused(Error.of(ErrorClass.OUTAGE, "NO_AOF", f"wait.aof: {error.text}"))
        if replicas:
            try:
                # Not how many are connected: one that hangs is connected too.
                found = wire.ask("WAIT", replicas, self._milliseconds(until), until=until)
            except ReplyError as error:
                return Refused(
                    Error.of(ErrorClass.OUTAGE, "NOREPLICAS", f"wait.replicas: {error.text}")
                )
            if not isinstance(found, int):
                raise Broken.out_of_step()
            if found < replicas:
                text = f"wait.replicas: {found} of {replicas} answer"
                return Refused(Error.of(ErrorClass.OUTAGE, "NOREPLICAS", text))
        return None

    def _milliseconds(self, until: float) -> int:
        # A little less than what is left, so that the answer still arrives in time.
        left = min(self._wait.timeout.total_seconds(), 0.9 * (until - time.monotonic()))
        return max(SHORTEST_WAIT_MS, int(left * 1000))


def _short(text: str) -> Refused:
    return Refused(Error.of(ErrorClass.OUTAGE, "NOT_COPIED", text))
