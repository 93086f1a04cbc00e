"""
Reports: asks pods for their status on their port.

If a network policy drops the request, every reconcile would wait for the timeout: such a pod is
asked again after a growing pause. A pod that refuses at once, for example while it starts, costs
nothing.
"""

import asyncio
import time
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from outbox_core.contract.report import ReportPart
from outbox_operator.kube.pod_port import NotAnswered, get

Answer = TypeVar("Answer", bound=ReportPart)

ANSWER_SECONDS = 2.0
"""A pod that does not answer within this time counts as silent until the next reconcile."""
MOST_AT_A_TIME = 50
"""Pods that are asked at the same time."""
FIRST_PAUSE_SECONDS = 10.0
"""After the second timeout in a row: a single one is normal."""
LONGEST_PAUSE_SECONDS = 300.0
"""With this pause, five hundred silent relays take less than half the time of eight workers."""


class Silence(NamedTuple):
    times: int
    until: float
    """The pod is not asked again before this time."""


class Unanswered(NamedTuple):
    since: float
    asked: float
    """When the pod was last asked."""


class Reporters:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent: dict[str, Silence] = {}
        """By address."""
        self._unanswered: dict[str, Unanswered] = {}
        """By pod: those that did not answer when last asked, for any reason."""
        self._room = asyncio.Semaphore(MOST_AT_A_TIME)

    async def ask(
        self, pods: Iterable[tuple[str, str]], port: int, kind: type[Answer]
    ) -> dict[str, Answer]:
        """`pods`: names and addresses. Pods that do not answer are left out of the result."""
        wanted = list(pods)
        asking = [self._ask_one(address, port, kind) for _, address in wanted]
        found = [await asking[0]] if len(asking) == 1 else await asyncio.gather(*asking)
        answers = {name: r for (name, _), r in zip(wanted, found, strict=True) if r is not None}
        self._note_answers([name for name, _ in wanted], answers)
        return answers

    def unanswered(self, pod: str) -> float:
        """For how many seconds the pod has not answered, as far as this process knows."""
        found = self._unanswered.get(pod)
        return 0.0 if found is None else self._clock() - found.since

    def _note_answers(self, asked: Iterable[str], answers: Container[str]) -> None:
        now = self._clock()
        for name in asked:
            before = self._unanswered.pop(name, None)
            if name not in answers:
                self._unanswered[name] = Unanswered(before.since if before else now, now)
        gone = [
            name for name, u in self._unanswered.items() if now - u.asked > LONGEST_PAUSE_SECONDS
        ]
        for name in gone:
            del self._unanswered[name]

    async def _ask_one(self, address: str, port: int, kind: type[Answer]) -> Answer | None:
        before = self._silent.get(address)
        if before is not None and self._clock() < before.until:
            return None
        try:
            async with self._room, asyncio.timeout(ANSWER_SECONDS):
                status, content = await get(address, port, "/status")
            self._silent.pop(address, None)
            return kind.model_validate_json(content) if status == 200 else None
        except TimeoutError:
            self._note_silence(address, 1 + (before.times if before else 0))
            return None
        except (NotAnswered, OSError, ValidationError):
            self._silent.pop(address, None)
            return None  # it is not up yet, no longer up, or not our program

    def _note_silence(self, address: str, times: int) -> None:
        now = self._clock()
        pause = (
            min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(times - 2, 10))
            if times > 1
            else 0.0
        )
        # Forget pods that are gone: nobody asks them again.
        gone = [a for a, s in self._silent.items() if now - s.until > LONGEST_PAUSE_SECONDS]
        for old in gone:
            del self._silent[old]
        self._silent[address] = Silence(times, now + pause)
