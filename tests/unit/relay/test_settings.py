"""Settings: what is accepted, with which defaults, and what a mistake is told."""

import socket
from datetime import timedelta
from os import getpid
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from fixtures.made_settings import relay_settings
from outbox_core.contract.settings import RelaySettings, RetryPolicy, explain, load_relay
from outbox_core.contract.values import Duration, SecretRef, format_duration, parse_duration
from outbox_core.errors import SettingsError
from outbox_core.model.retry import Override, Retry

SMALLEST: dict[str, Any] = {
    "name": "orders",
    "publisher": {"kafka": {"bootstrapServers": "kafka:9092"}},
}

WITH_A_LOGIN: dict[str, list[Any]] = {
    "http": [{"url": "https://u:hunter2@h/"}, {"url": "http://hunter2@{tenant_id}.h?a"}],
    "rabbitmq": ["u:hunter2@a:1", "amqp://u:hunter2@a", "b,u:x,hunter2@a", "a/hunter2"],
    "sqs": [f"https://{p}" for p in ("hunter2@h/1/q", "u:hunter2@h/1/q", "h/1/q?x@hunter2")],
}


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def mistake(**more: Any) -> str:
    """What is said about these settings."""
    with pytest.raises(ValidationError) as caught:
        RelaySettings.model_validate({**SMALLEST, **more})
    return explain(caught.value)


def kafka(**more: Any) -> dict[str, Any]:
    return {"kafka": {"bootstrapServers": "kafka:9092", **more}}


# Defaults -----------------------------------------------------------------------------------


def test_name_and_broker_are_all_that_must_be_said() -> None:
    settings = RelaySettings.model_validate(SMALLEST)
    assert settings.store.dsn == SecretRef(env="OUTBOX_DSN")
    assert settings.subscription.event_types == ("*",)
    assert settings.subscription.tenants is None
    assert (settings.ordering, settings.on_dead) == ("None", "Block")
    assert (settings.batch_size, settings.workers) == (2000, 2)
    assert (settings.lease, settings.drain) == (seconds(60), seconds(35))
    assert not settings.polling.notify
    assert (settings.http.port, settings.log.format) == (8080, "json")


def test_the_defaults_fit_each_other() -> None:
    settings = RelaySettings.model_validate(SMALLEST)
    assert settings.publisher.timeout < settings.drain < settings.lease
    assert settings.store.statement_timeout < settings.lease
    assert settings.polling.shortest < settings.polling.longest
    assert settings.retry.base_delay < settings.retry.max_delay


def test_oo_31_the_retry_policy_is_defined_by_default() -> None:
    assert RetryPolicy().model_dump(by_alias=True, mode="json") == {
        "maxAttempts": 10, "baseDelay": "2s", "maxDelay": "5m", "jitter": 0.2, "maxAge": None,
        "maxCrashes": 3, "overrides": [],
    }  # fmt: skip


def test_oo_31_by_default_the_tenth_attempt_comes_about_a_quarter_of_an_hour_later() -> None:
    policy = RetryPolicy().policy()
    waited = sum(policy.delay("a.b", nth, 0.5) for nth in range(1, policy.max_attempts))
    assert 13 * 60 <= waited <= 16 * 60


def test_every_part_of_the_policy_reaches_the_model() -> None:
    settings = relay_settings(
        retry={
            "maxAttempts": 3, "baseDelay": "1s", "maxDelay": "10s", "jitter": 0.5, "maxAge": "1d",
            "maxCrashes": 7,
            "overrides": [{"eventType": "email.*", "maxAttempts": 4, "baseDelay": "2s"}],
        }
    )  # fmt: skip
    assert settings.retry.policy() == Retry(
        3, seconds(1), seconds(10), 0.5, timedelta(days=1), 7,
        (Override("email.*", 4, seconds(2)),),
    )  # fmt: skip


def test_em_50_we_are_the_pod_or_otherwise_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "orders-0")
    assert relay_settings(identity="me").owner == "me"
    assert relay_settings(identity="").owner == "orders-0"
    monkeypatch.delenv("POD_NAME")
    assert relay_settings(identity="").owner == f"{socket.gethostname()}-{getpid()}"


# The file -----------------------------------------------------------------------------------


def test_a_file_is_read_with_camel_case_names(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text(
        """
        name: orders
        subscription: {eventTypes: ["order.*"], tenants: [a, b]}
        publisher:
          kafka:
            bootstrapServers: kafka-0:9092,kafka-1:9092
            topic: "events.{aggregate_type}"
            deliveryTimeout: 90s
            tls: {}
            config: {socket.keepalive.enable: true, client.rack: eu-1}
        lease: 2m
        ordering: Key
        retry: {overrides: [{eventType: "email.*", maxAttempts: 4}]}
        """
    )
    settings = load_relay(file)
    assert settings.subscription.tenants == ("a", "b")
    assert settings.publisher.timeout == seconds(90)
    assert settings.publisher.kafka is not None
    assert settings.publisher.kafka.tls is not None
    assert settings.publisher.kafka.config == {
        "socket.keepalive.enable": True, "client.rack": "eu-1",
    }  # fmt: skip
    assert settings.retry.overrides[0].max_attempts == 4


def test_what_was_read_can_be_written_and_read_again(tmp_path: Path) -> None:
    settings = relay_settings(
        lease="90s", retry={"maxAge": "36h", "baseDelay": "1500ms"}, store={"dsn": {"file": "/dsn"}}
    )
    file = tmp_path / "relay.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(by_alias=True, mode="json")))
    assert load_relay(file) == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a mapping with at least name and publisher"),
        ("- a\n- b\n", "expected a mapping"),
        ("name: [", "is not YAML"),
        ("name: orders", "publisher: Field required"),
        ("publisher: {kafka: {bootstrapServers: x}}", "name: Field required"),
        ("name: orders\npublisher: {}", "publisher: name exactly one publisher: kafka"),
        ("1: 2", "1: Keys should be strings"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_relay(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*absent\.yaml: No such file"):
        load_relay(tmp_path / "absent.yaml")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(SettingsError, match=r"relay\.yaml"):
        load_relay(file)


# Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"batchSzie": 5}, "batchSzie: unknown field: remove it or correct its name"),
        ({"batchSize": 0}, "batchSize: Input should be greater than or equal to 1"),
        ({"batchSize": 10_001}, "batchSize: Input should be less than or equal to 10000"),
        ({"workers": 17}, "workers: Input should be less than or equal to 16"),
        ({"ordering": "key"}, "ordering: Input should be 'None' or 'Key'"),
        ({"onDead": "Skip"}, "onDead: Input should be 'Block' or 'Continue'"),
        ({"name": ""}, "name: String should have at least 1 character"),
        ({"name": "x" * 254}, "name: String should have at most 253 characters"),
        ({"http": {"port": 65536}}, "http.port: Input should be less than or equal to 65535"),
        ({"log": {"format": "xml"}}, "log.format: Input should be 'json' or 'text'"),
        ({"subscription": {"eventTypes": []}}, "subscription.eventTypes: Tuple should have"),
        ({"subscription": {"tenants": []}}, "subscription.tenants: Tuple should have"),
        ({"retry": {"maxAttempts": 0}}, "retry.maxAttempts: Input should be greater"),
        ({"retry": {"jitter": 1.1}}, "retry.jitter: Input should be less than or equal to 1"),
        ({"retry": {"jitter": float("nan")}}, "retry.jitter: Input should be"),
        ({"retry": {"overrides": [{}]}}, "retry.overrides.0.eventType: Field required"),
        (
            {"publisher": {"pigeon": {}}},
            "publisher.pigeon: unknown field: remove it or correct its name",
        ),
        ({"publisher": kafka(format="Avro")}, "publisher.kafka.format: Input should be 'Raw', "),
        (
            {"publisher": kafka(sasl={})},
            "publisher.kafka.sasl: SCRAM-SHA-512 needs username and password, and no token",
        ),
        (
            {"publisher": kafka(sasl={"mechanism": "PLAIN", "token": {"env": "T"}})},
            "publisher.kafka.sasl: PLAIN needs username and password, and no token",
        ),
        (
            {"publisher": kafka(sasl={"mechanism": "OAUTHBEARER", "username": {"env": "U"}})},
            "publisher.kafka.sasl: OAUTHBEARER needs token, and neither username nor password",
        ),
        ({"publisher": kafka(topic="")}, "publisher.kafka.topic: String should have at least 1"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_is_expected(
    more: dict[str, Any], said: str
) -> None:
    assert f"  {said}" in mistake(**more)


def test_each_mistake_has_a_line_of_its_own() -> None:
    told = mistake(batchSize=0, workers=0, lease=60).splitlines()
    assert [line.split(":")[0].strip() for line in told] == ["batchSize", "workers", "lease"]


def test_oo_04_a_retry_without_delay_is_refused() -> None:
    assert "retry.baseDelay: Input should be greater" in mistake(retry={"baseDelay": "0s"})
    override = {"eventType": "a.*", "baseDelay": "0s"}
    assert "retry.overrides.0.baseDelay: Input" in mistake(retry={"overrides": [override]})


@pytest.mark.parametrize(("lease", "timeout"), [("30s", "30s"), ("10s", "30s"), ("1m", "60000ms")])
def test_a_lease_that_a_publish_may_outlive_is_refused_with_the_cure(
    lease: str, timeout: str
) -> None:
    told = mistake(lease=lease, publisher=kafka(deliveryTimeout=timeout))
    assert told.startswith("  relay: lease (")
    assert "must be longer than the publisher's deliveryTimeout (" in told
    assert told.endswith("raise the one or lower the other")


def test_a_lease_just_above_the_publishers_timeout_is_fine() -> None:
    relay_settings(lease="31s")
    assert "lease (30s)" in mistake(lease="30s")


def test_settings_do_not_change() -> None:
    settings = RelaySettings.model_validate(SMALLEST)
    with pytest.raises(ValidationError, match="frozen"):
        settings.lease = seconds(1)


@pytest.mark.parametrize(
    "given",
    [
        *WITH_A_LOGIN["http"],
        {"url": "https://h", "check": {"url": "https://u:hunter2@h/{event_id}"}},
    ],
)
def test_the_url_of_an_endpoint_has_no_login(given: dict[str, Any]) -> None:
    said = mistake(publisher={"http": {"allowedHosts": ["*"], **given}})
    assert "url and check.url must not contain a user name or a password" in said


def test_an_at_sign_behind_the_host_is_no_login() -> None:
    http = {"url": "https://h/@{tenant_id}", "check": {"url": "https://h?for=a@b"}}
    RelaySettings.model_validate({**SMALLEST, "publisher": {"http": http}})


@pytest.mark.parametrize("hosts", WITH_A_LOGIN["rabbitmq"])
def test_hosts_of_rabbitmq_have_no_login(hosts: str) -> None:
    said = mistake(publisher={"rabbitmq": {"hosts": hosts}})
    assert "without a login: username and password have fields of their own" in said


@pytest.mark.parametrize("url", WITH_A_LOGIN["sqs"])
def test_the_url_of_a_queue_has_no_login(url: str) -> None:
    said = mistake(publisher={"sqs": {"queueUrl": url}})
    assert "queueUrl must not contain a user name or a password" in said


# Durations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("7d", 604_800),
        ("1.5s", 1.5), ("1m500ms", 60.5), ("0s", 0),
    ],
)  # fmt: skip
def test_durations_are_written_as_people_write_them(text: str, length: float) -> None:
    assert parse_duration(text) == seconds(length)


@pytest.mark.parametrize(
    "wrong", [60, 1.5, "60", "", "s", "5 s", "-5s", "5y", "1h 30m", "PT5S", None, True, ["5s"]]
)
def test_what_is_no_duration_is_refused_with_examples(wrong: object) -> None:
    with pytest.raises(ValueError, match="write for example 500ms, 30s, 5m, 1h30m or 7d"):
        parse_duration(wrong)


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "0ms"), (0.002, "2ms"), (1.5, "1500ms"), (90, "90s"), (300, "5m"), (5400, "90m"),
     (129_600, "36h"), (604_800, "7d")],
)  # fmt: skip
def test_durations_are_shown_in_the_largest_unit_that_is_exact(length: float, text: str) -> None:
    assert format_duration(seconds(length)) == text


@hypothesis.settings(deadline=None)
@given(st.integers(0, 999_999))
def test_a_duration_that_was_shown_can_be_read_again(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value


def test_a_long_duration_that_is_no_whole_second_can_be_read_again() -> None:
    value = timedelta(milliseconds=1_234_567)
    assert parse_duration(format_duration(value)) == value


class OneDuration(BaseModel):
    value: Duration


def test_a_duration_beyond_all_bounds_is_a_mistake_like_others() -> None:
    with pytest.raises(ValidationError, match="value"):
        OneDuration.model_validate({"value": "9999999999999d"})


# Secrets ------------------------------------------------------------------------------------


def test_a_secret_is_read_from_a_file_without_its_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" hunter2\r\n")
    assert SecretRef(file=file).read("store.dsn") == " hunter2"


def test_a_secret_that_is_no_text_is_told_without_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"hunter2\xff")
    monkeypatch.setenv("SOME_SECRET", "hunter2\udcff")
    for ref in (SecretRef(file=file), SecretRef(env="SOME_SECRET")):
        with pytest.raises(SettingsError, match="is not UTF-8") as caught:
            ref.read("store.dsn")
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_secret_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = SecretRef(env="SOME_SECRET")
    monkeypatch.setenv("SOME_SECRET", "first")
    assert ref.read("x") == "first"
    monkeypatch.setenv("SOME_SECRET", "rotated")
    assert ref.read("x") == "rotated"


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        (SecretRef(), "file or env"),
        (SecretRef(file=Path("/a"), env="B"), "file or env"),
        (SecretRef(env="NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
        (SecretRef(file=Path("/not/there")), "/not/there: No such file"),
    ],
)
def test_an_unreadable_secret_is_reported_with_its_purpose(ref: SecretRef, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ref.read("kafka.sasl.password")
    assert str(caught.value).startswith("kafka.sasl.password: ")
    assert said in str(caught.value)


def test_settings_can_be_shown_because_they_hold_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUTBOX_DSN", "postgresql://u:hunter2@db/x")
    (tmp_path / "password").write_text("hunter2")
    password = {"file": str(tmp_path / "password")}
    sasl = {"username": {"env": "OUTBOX_DSN"}, "password": password}
    settings = relay_settings(publisher=kafka(sasl=sasl, tls={"keyPassword": password}))
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    "more",
    [
        {"store": {"dsn": "postgresql://u:hunter2@db/x"}},
        {"store": {"dsn": {"value": "hunter2"}}},
        {"store": {"password": "hunter2"}},
        {"publisher": kafka(sasl={"username": {"env": "U"}, "password": "hunter2"})},
        {"publisher": kafka(tls={"keyPassword": "hunter2"})},
        *({"publisher": {"http": http}} for http in WITH_A_LOGIN["http"]),
        *({"publisher": {"rabbitmq": {"hosts": hosts}}} for hosts in WITH_A_LOGIN["rabbitmq"]),
        *({"publisher": {"sqs": {"queueUrl": url}}} for url in WITH_A_LOGIN["sqs"]),
        {"password": "hunter2"},
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(more: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text(yaml.safe_dump({**SMALLEST, **more}))
    with pytest.raises(SettingsError) as caught:
        load_relay(file)
    assert "hunter2" not in str(caught.value)


def test_a_secret_in_a_line_that_is_not_yaml_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text("name: orders\nstore: {dsn: 'postgresql://u:hunter2@db}\n")
    with pytest.raises(SettingsError) as caught:
        load_relay(file)
    assert "hunter2" not in str(caught.value)
