"""What `outbox-relay check` says about a NATS server and its streams."""

from typing import Any

import pytest

from broker.nats.conftest import MakePublisher
from broker.nats.streams import Admin
from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.errors import SettingsError
from outbox_relay.publishers import nats as package
from outbox_relay.publishers.nats.publisher import NatsPublisher
from outbox_relay.publishers.protocol import Sample

pytestmark = pytest.mark.nats


def sample(event_type: str) -> Sample:
    return {"event_type": event_type, "aggregate_type": None, "tenant_id": None}


def said(publisher: NatsPublisher, *event_types: str) -> list[tuple[str, str]]:
    return [(r.level, r.text) for r in publisher.check([sample(name) for name in event_types])]


def test_a_good_stream_gets_the_one_warning_that_one_replica_deserves(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    stream = admin.make()
    found = said(make_publisher(), f"{stream}.a", f"{stream}.b")
    assert [level for level, _ in found] == ["ok", "ok", "warn"]
    assert "sync_interval: always" in found[2][1]


@pytest.mark.parametrize(
    ("config", "settings", "level", "words"),
    [
        ({"no_ack": True, "allow_atomic": False}, {}, "fail", "no_ack is set"),
        ({"duplicate_window": 10_000_000_000}, {}, "warn", "duplicate_window is 10 s"),
        ({"storage": "memory"}, {}, "warn", "lost when the servers stop"),
        ({"allow_atomic": False}, {}, "warn", "no atomic batches"),
        ({"max_msg_size": 5000}, {}, "warn", "max_msg_size is 5000"),
        ({}, {"max_message_bytes": 2_000_000}, "warn", "max_payload is 1048576"),
        ({}, {"stream": "elsewhere"}, "fail", "not to elsewhere"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_with_a_stream_is_said(
    admin: Admin,
    make_publisher: MakePublisher,
    config: dict[str, Any],
    settings: dict[str, Any],
    level: str,
    words: str,
) -> None:
    stream = admin.make(**config)
    found = said(make_publisher(**settings), f"{stream}.a")
    assert [found_level for found_level, text in found if words in text] == [level], found


def test_what_was_not_asked_for_is_no_warning(admin: Admin, make_publisher: MakePublisher) -> None:
    stream = admin.make(allow_atomic=False, duplicate_window=10_000_000_000)
    found = said(make_publisher(atomic="Never", deduplicate=False), f"{stream}.a")
    assert [level for level, _ in found] == ["ok", "ok", "warn"]


def test_a_subject_without_a_stream_fails_and_none_is_made(
    admin: Admin, make_publisher: MakePublisher
) -> None:
    assert ("fail", "no stream has the subject nobody.has.it") in said(
        make_publisher(), "nobody.has.it"
    )
    (answer,) = admin.ask(("STREAM.NAMES", {"subject": "nobody.has.it"}))
    assert not answer["streams"]


@pytest.mark.parametrize(
    "subject", ["{nothing}", "a b", "$JS.{event_type}", "a..{event_type}", "*"]
)
def test_a_template_that_makes_no_subject_is_refused(subject: str) -> None:
    settings = NatsSettings(servers=("nats://unused",), subject=subject)
    with pytest.raises(SettingsError, match=r"nats\.subject"):
        package.validate(settings)
