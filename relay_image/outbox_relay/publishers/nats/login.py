"""
Who we are: the credentials in CONNECT, and the TLS context. Read again for every connection, so
that changed secrets need no restart.
"""

import base64
import re
from typing import Any

from outbox_core.contract.publishers.nats import NatsSettings
from outbox_core.errors import SettingsError

BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\s*(\S+)\s*-+END [A-Z ]+-+")
USER_PREFIX = 20 << 3
"""The first byte of a user's public key, which makes its text begin with U."""


def login(settings: NatsSettings, nonce: str) -> dict[str, Any]:
    """The fields of CONNECT that identify us."""
    if settings.username is not None and settings.password is not None:
        return {
            "user": settings.username.read("nats.username"),
            "pass": settings.password.read("nats.password"),
        }
    if settings.token is not None:
        return {"auth_token": settings.token.read("nats.token")}
    if settings.credentials_file is not None:
        try:
            text = settings.credentials_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise SettingsError(
                f"nats.credentialsFile: cannot read {settings.credentials_file}: {why}"
            ) from None
        return signed(text, nonce)
    return {}


def signed(text: str, nonce: str) -> dict[str, Any]:
    """The server's nonce, signed by the seed of a `.creds` file or of a file with a seed alone."""
    # Imported only here, because few need it and it takes a while to load.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    blocks = dict(BLOCK.findall(text))
    seed = blocks.get("USER NKEY SEED") or text.strip()
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
        # The first two bytes are its kind, the last two a checksum.
        key = Ed25519PrivateKey.from_private_bytes(raw[2:34])
    except ValueError:
        raise SettingsError("nats.credentialsFile: it contains no nkey seed") from None
    signature = base64.urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("=")
    if jwt := blocks.get("NATS USER JWT"):
        return {"jwt": jwt, "sig": signature}
    return {"nkey": public_nkey(key.public_key().public_bytes_raw()), "sig": signature}


def public_nkey(public: bytes, kind: int = USER_PREFIX) -> str:
    """The text that servers know a user by."""
    body = bytes([kind]) + public
    return base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")


def crc16(data: bytes) -> int:
    """The CRC of XMODEM."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc
