"""What all tests share; each module of fixtures says what it offers."""

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
]
