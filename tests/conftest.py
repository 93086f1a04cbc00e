"""What all tests share; each module of fixtures says what it offers."""

from hypothesis import HealthCheck, settings

# How long an example takes depends on what runs beside it, and says nothing about the code.
settings.register_profile(
    "outbox",
    parent=settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("outbox")

pytest_plugins = [
    "fixtures.servers",
    "fixtures.brokers",
    "fixtures.databases",
    "fixtures.topics",
    "fixtures.outbox",
    "fixtures.relays",
    "fixtures.replays",
    "fixtures.spec",
    "fixtures.suites",
    "fixtures.examples",
]
