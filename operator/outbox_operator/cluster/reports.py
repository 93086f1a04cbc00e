"""Reports: asks the pods themselves, on their one port, what they have to say."""

import asyncio
from collections.abc import Iterable
from typing import TypeVar

import aiohttp
from pydantic import ValidationError

from outbox_relay.contract.report import ReportPart

Told = TypeVar("Told", bound=ReportPart)

SECONDS = 2.0
"""A pod that does not answer by then counts as silent until the next look."""
LONGEST = 1_000_000


class Reporters:
    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(SECONDS), connector=aiohttp.TCPConnector(limit=50)
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self, pods: Iterable[tuple[str, str]], port: int, kind: type[Told]
    ) -> dict[str, Told]:
        """Pods by name and address; who does not answer is left out."""
        wanted = list(pods)
        found = await asyncio.gather(*(self._ask_one(address, port, kind) for _, address in wanted))
        return {name: r for (name, _), r in zip(wanted, found, strict=True) if r is not None}

    async def _ask_one(self, address: str, port: int, kind: type[Told]) -> Told | None:
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{port}/status") as response:
                content = await response.content.read(LONGEST)
                return kind.model_validate_json(content) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError):
            return None  # not yet up, no longer up, or not one of ours
