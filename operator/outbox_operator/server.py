"""
The operator's port: /healthz (no restart is needed), /readyz (every watch works) and /metrics.

Health and readiness are separate: a missing right is no reason to restart anything.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


async def serve(
    registry: CollectorRegistry,
    port: int,
    trouble: Callable[[], str | None],
    readiness: Callable[[], tuple[bool, str]],
) -> web.AppRunner:
    """`trouble` returns a problem that only a restart can fix; None: there is none. `readiness`
    returns whether the operator does its work, and a message about that."""

    async def healthz(request: web.Request) -> web.Response:
        found = trouble()
        return web.Response(text=f"{found or 'alive'}\n", status=503 if found else 200)

    async def readyz(request: web.Request) -> web.Response:
        ready, text = readiness()
        return web.Response(text=f"{text}\n", status=200 if ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 - the kubelet must reach it
    return runner
