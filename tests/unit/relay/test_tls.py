"""Certificates, keys and their passwords, as every publisher with sockets of its own reads them."""

import ssl
from pathlib import Path

import pytest

from fixtures.certificates import Authority, openssl
from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.values import SecretRef
from outbox_core.errors import SettingsError
from outbox_relay.publishers.tls import tls_context

PASSWORD = "of-the-key"


@pytest.fixture
def encrypted(tmp_path: Path) -> dict[str, Path]:
    authority = Authority(tmp_path / "ca", "ca")
    issued = authority.issue("client")
    key = tmp_path / "encrypted.key"
    openssl("ec", "-aes128", "-in", issued.key, "-out", key, "-passout", f"pass:{PASSWORD}")
    return {"ca_file": authority.cert, "cert_file": issued.cert, "key_file": key}


def password(tmp_path: Path, text: str) -> SecretRef:
    file = tmp_path / "password"
    file.write_text(text)
    return SecretRef(file=file)


def test_a_key_is_read_with_its_password(encrypted: dict[str, Path], tmp_path: Path) -> None:
    tls = Tls(**encrypted, key_password=password(tmp_path, PASSWORD))
    assert tls_context(tls, "smtp.tls").verify_mode is ssl.CERT_REQUIRED


def test_without_settings_the_systems_authorities_are_trusted() -> None:
    assert tls_context(None, "smtp.tls").verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("wrong", [None, "another", "x" * 2000])
def test_a_password_that_is_missing_or_wrong_names_the_setting_and_asks_no_terminal(
    encrypted: dict[str, Path],
    tmp_path: Path,
    wrong: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(context: ssl.SSLContext, cert: Path, key: Path, word: str | None) -> None:
        asked.extend([word] if word is None else [])  # None: OpenSSL asks the terminal
        load(context, cert, key, word or "")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    given = None if wrong is None else password(tmp_path, wrong)
    with pytest.raises(SettingsError, match=r"^smtp\.tls: "):
        tls_context(Tls(**encrypted, key_password=given), "smtp.tls")
    assert not asked


def test_a_file_that_is_missing_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^nats\.tls: "):
        tls_context(Tls(ca_file=tmp_path / "gone.pem"), "nats.tls")
