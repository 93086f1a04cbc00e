"""How a request shows who sent it: Standard Webhooks signatures, bearer tokens, passwords."""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

from outbox_core.contract.publishers.http import HttpAuth, HttpSigning
from outbox_core.errors import SettingsError
from outbox_relay.publishers.http.secrets import FromFiles, Hidden, files_of

PREFIX: Final = "whsec_"
SIGNATURE_HEADERS: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")

Lines = Sequence[tuple[str, str]]


class _Keys(NamedTuple):
    keys: Sequence[bytes]
    hide: Hidden


class _Login(NamedTuple):
    value: str
    hide: Hidden


class Signer:
    def __init__(self, settings: HttpSigning) -> None:
        def read() -> _Keys:
            secrets = [ref.read("http.signing.secrets") for ref in settings.secrets]
            keys = [signing_key(secret) for secret in secrets]
            return _Keys(keys, Hidden(*(secret.removeprefix(PREFIX) for secret in secrets)))

        self._keys = FromFiles(files_of(*settings.secrets), read)

    def hide(self, text: bytes) -> bytes:
        return self._keys.known.hide(text)

    def __call__(self, message_id: str, now: int, body: bytes) -> Lines:
        """The headers of one request; `now` in seconds since 1970."""
        signed = b"%s.%d.%s" % (message_id.encode(), now, body)
        signatures = " ".join(
            "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
            for key in self._keys.get().keys
        )
        return list(zip(SIGNATURE_HEADERS, (message_id, str(now), signatures), strict=True))


def signing_key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:  # not base64, or not even ASCII
        key = b""
    if not key:
        # Never the secret itself.
        raise SettingsError(f"http.signing.secrets: a secret must be {PREFIX} followed by base64")
    return key


class Authorization:
    def __init__(self, settings: HttpAuth) -> None:
        token, username, password = settings.token, settings.username, settings.password

        def read() -> _Login:
            if token is not None:
                bearer = header_safe(token.read("http.auth.token"))
                return _Login(f"Bearer {bearer}", Hidden(bearer))
            assert username is not None
            assert password is not None
            word = password.read("http.auth.password")
            pair = f"{username.read('http.auth.username')}:{word}"
            if pair == ":":
                raise SettingsError("http.auth: user name and password are empty")
            basic = base64.b64encode(pair.encode()).decode()
            return _Login(f"Basic {basic}", Hidden(basic, word))

        self._login = FromFiles(files_of(token, username, password), read)

    def __call__(self) -> str:
        return self._login.get().value

    def hide(self, text: bytes) -> bytes:
        return self._login.known.hide(text)


def header_safe(value: str) -> str:
    if not value:
        raise SettingsError("http.auth.token is empty")
    if not (value.isascii() and value.isprintable()):
        raise SettingsError("http.auth.token has characters that a header cannot have")
    return value
