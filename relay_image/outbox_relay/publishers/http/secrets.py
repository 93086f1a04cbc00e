"""
Secrets in files, which may change at any time: read again when they did, without a restart.

A file is looked at once per call, and its contents only if it is another one. One that cannot be
read now leaves what was known: the new one is being written, perhaps.
"""

import logging
import os
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from outbox_core.contract.publishers.common import Tls
from outbox_core.contract.values import SecretRef
from outbox_core.errors import SettingsError

log = logging.getLogger(__name__)

Made = TypeVar("Made")


class FromFiles(Generic[Made]):
    """Something made from files; made again when one of them has changed."""

    def __init__(self, files: Sequence[Path | None], make: Callable[[], Made]) -> None:
        self._files = [file for file in files if file is not None]
        self._make = make
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._made = make()

    def get(self) -> Made:
        if not self._files:
            return self._made
        stamp = self._look()
        if stamp != self._stamp:
            with self._lock:
                if stamp != self._stamp:
                    self._renew(stamp)
        return self._made

    def _renew(self, stamp: Sequence[object]) -> None:
        try:
            self._made = self._make()
        except SettingsError as error:
            log.warning("a changed secret is not used yet: %s", error)
        self._stamp = stamp

    def _look(self) -> Sequence[object]:
        found: list[object] = []
        for file in self._files:
            try:
                seen = os.stat(file)
                found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
            except OSError as error:
                found.append(error.errno)
        return found


def files_of(*refs: SecretRef | None) -> list[Path | None]:
    return [ref.file for ref in refs if ref is not None]


def tls_context(tls: Tls | None) -> FromFiles[ssl.SSLContext]:
    given = tls or Tls()
    files = [given.ca_file, given.cert_file, given.key_file]
    if given.key_password is not None:
        files.append(given.key_password.file)

    def make() -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=given.ca_file)
            if given.cert_file is not None:
                password = given.key_password and given.key_password.read("http.tls.keyPassword")
                # Without a password OpenSSL would ask the terminal for one.
                context.load_cert_chain(given.cert_file, given.key_file, password or "")
        except (OSError, ValueError) as error:
            raise SettingsError(f"http.tls: {error}") from None
        return context

    return FromFiles(files, make)
