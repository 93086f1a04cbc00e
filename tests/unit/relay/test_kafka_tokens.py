"""Tokens for OAUTHBEARER: when each expires, and what happens when no new one can be read."""

import base64
import json
import time
from datetime import timedelta
from pathlib import Path

import pytest

from outbox_core.contract.publishers.kafka import Sasl
from outbox_core.contract.values import SecretRef
from outbox_core.errors import SettingsError
from outbox_relay.publishers.kafka.tokens import SHORTEST_LIFE_SECONDS, Tokens, expiry


def jwt(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.c2ln"


@pytest.mark.parametrize(
    ("token", "expires"),
    [
        (jwt({"exp": 1_800_000_000}), 1_800_000_000.0),
        (jwt({"exp": 1_800_000_000.5, "sub": "ü" * 7}), 1_800_000_000.5),
        (jwt({"sub": "relay"}), None),
        (jwt({"exp": "tomorrow"}), None),
        (jwt([1, 2]), None),
        ("opaque", None),
        ("a.b.c", None),
        ("..", None),
        ("a.!!!.c", None),
        ("", None),
    ],
)
def test_a_jwt_says_when_it_expires_and_nothing_else_does(
    token: str, expires: float | None
) -> None:
    assert expiry(token) == expires


def tokens(file: Path) -> Tokens:
    lifetime = timedelta(minutes=3)
    return Tokens(
        Sasl(mechanism="OAUTHBEARER", token=SecretRef(file=file), token_lifetime=lifetime)
    )


def test_a_token_that_says_nothing_has_the_lifetime_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("opaque\n")
    token, expires = tokens(file)("")
    assert token == "opaque"
    assert 170 < expires - time.time() <= 180


def test_an_expired_token_is_left_to_the_broker_to_refuse(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(jwt({"exp": 1}))
    _, expires = tokens(file)("")
    assert 0 < expires - time.time() <= SHORTEST_LIFE_SECONDS


def test_while_no_new_token_can_be_read_the_last_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    given = tokens(file)
    file.unlink()
    assert given("")[0] == "first"
    assert "cannot read" in caplog.text
    file.write_text("second")
    assert given("")[0] == "second"


def test_without_a_first_token_there_is_no_client(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"kafka\.sasl\.token: cannot read"):
        tokens(tmp_path / "absent")
