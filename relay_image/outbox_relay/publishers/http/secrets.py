"""
Secrets in files, which may change at any time: read again when they have, without a restart.

A file's metadata is checked whenever its secret is used, and its contents are read only if the
metadata has changed. If it cannot be read, the old contents stay in use: perhaps the new ones are
just being written.
"""

import json
import logging
import os
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.values import SecretRef
from outbox_core.errors import SettingsError
from outbox_relay.publishers.tls import tls_context

SHORTEST_SECRET_CHARS: Final = 4
"""Hiding a shorter one would garble the text for people, and reveal its letters."""
STARS: Final = b"***"

log = logging.getLogger(__name__)

Made = TypeVar("Made")


class FromFiles(Generic[Made]):
    """Something made from files; made again when one of them has changed."""

    def __init__(self, files: Sequence[Path | None], make: Callable[[], Made]) -> None:
        self._files = [file for file in files if file is not None]
        self._make = make
        self._lock = threading.Lock()
        self._stamp = self._stamps()
        self._made = make()

    def get(self) -> Made:
        if not self._files:
            return self._made
        stamp = self._stamps()
        if stamp != self._stamp:
            with self._lock:
                if stamp != self._stamp:
                    self._renew(stamp)
        return self._made

    @property
    def known(self) -> Made:
        """As it was made last, without checking the files."""
        return self._made

    def _renew(self, stamp: Sequence[object]) -> None:
        try:
            self._made = self._make()
        except SettingsError as error:
            log.warning("a changed secret is not used yet: %s", error)
        self._stamp = stamp

    def _stamps(self) -> Sequence[object]:
        found: list[object] = []
        for file in self._files:
            try:
                seen = os.stat(file)
                found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
            except OSError as error:
                found.append(error.errno)
        return found


class Hidden:
    """Removes secrets from a receiver's answer: some repeat the request, headers included."""

    def __init__(self, *secrets: str) -> None:
        forms = {
            form.encode()
            for secret in secrets
            for form in (secret, json.dumps(secret)[1:-1], secret.replace("/", "\\/"))
            if len(secret) >= SHORTEST_SECRET_CHARS
        }
        # The longest first: it may contain another.
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, text: bytes) -> bytes:
        for form in self._forms:
            text = text.replace(form, STARS)
        for form in self._forms:
            text = _without_beginning(text, form)
        return text


def _without_beginning(text: bytes, secret: bytes) -> bytes:
    """An answer may end within a secret: only its beginning was read, or the connection was
    lost."""
    at = max(0, len(text) - len(secret) + 1)
    while (at := text.find(secret[:SHORTEST_SECRET_CHARS], at)) >= 0:
        if secret.startswith(text[at:]):
            return text[:at] + STARS
        at += 1
    return text


def files_of(*refs: SecretRef | None) -> list[Path | None]:
    return [ref.file for ref in refs if ref is not None]


def tls_files(tls: Tls | None) -> FromFiles[ssl.SSLContext]:
    """The context, made again when one of its files has changed."""
    given = tls or Tls()
    files = [given.ca_file, given.cert_file, given.key_file, *files_of(given.key_password)]
    return FromFiles(files, lambda: tls_context(tls, "http.tls"))
