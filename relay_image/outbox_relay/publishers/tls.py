"""
TLS: the context of a connection, from the files and the password that the settings name.

Called by every publisher that opens its own sockets; Kafka's client reads the files itself.
"""

import ssl

from outbox_core.contract.publishers.common import Tls
from outbox_core.errors import SettingsError


def tls_context(tls: Tls | None, path: str) -> ssl.SSLContext:
    """`path` is where relay.yaml has these settings, for error texts. SettingsError if a file is
    missing or is not what it should be."""
    given = tls or Tls()
    try:
        context = ssl.create_default_context(cafile=given.ca_file)
        if given.cert_file is not None:
            # Never None: OpenSSL would ask for the password on the terminal, and wait.
            password = given.key_password.read(f"{path}.keyPassword") if given.key_password else ""
            context.load_cert_chain(given.cert_file, given.key_file, password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(f"{path}: the certificates cannot be used: {error}") from None
    return context
