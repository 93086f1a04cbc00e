"""
The keys that requests are signed with: those of the settings, or what the environment offers by
botocore's own rules (a pod's identity, variables, files, the node's role).

Found when the first request needs them, and again after the server refused them. Finding them may
ask other services, and block for seconds: the caller has a deadline of its own.
"""

import threading
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.errors import SettingsError
from outbox_relay.publishers.sqs.errors import RequestFailed

ASKING_SECONDS = 5


class Signer:
    """Shared by the threads that send."""

    def __init__(self, settings: SqsSettings, region: str) -> None:
        self._settings = settings
        self._region = region
        self._lock = threading.Lock()
        self._found: Any = None

    def headers(self, url: str, target: str, body: bytes) -> dict[str, str]:
        """Of a signed request; RequestFailed without keys."""
        request = AWSRequest(
            "POST",
            url,
            headers={
                "Content-Type": "application/x-amz-json-1.0",
                "X-Amz-Target": f"AmazonSQS.{target}",
            },
            data=body,
        )
        SigV4Auth(self._keys(), "sqs", self._region).add_auth(request)
        headers = dict(request.headers.items())
        # http.client would refuse them too, but quote them.
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            text = "the key or the token has a line break, or another character that no key has"
            raise RequestFailed("NO_CREDENTIALS", text)
        return headers

    def forget(self) -> None:
        """The server does not accept the keys: there may be new ones."""
        self._found = None  # without the lock: a thread that asks for keys may hold it

    def _keys(self) -> Any:
        try:
            found = self._found
            if found is None:
                with self._lock:
                    found = self._found = self._found or self._find()
            # They renew themselves here, one thread at a time.
            return found.get_frozen_credentials()
        except (BotoCoreError, ClientError, SettingsError) as error:
            raise RequestFailed("NO_CREDENTIALS", str(error)) from None

    def _find(self) -> Any:
        settings = self._settings
        if settings.access_key_id is not None and settings.secret_access_key is not None:
            return Credentials(
                settings.access_key_id.read("sqs.accessKeyId"),
                settings.secret_access_key.read("sqs.secretAccessKey"),
            )
        session = Session()
        session.set_config_variable("region", self._region)
        session.set_default_client_config(  # for the service that issues them
            Config(
                connect_timeout=ASKING_SECONDS,
                read_timeout=ASKING_SECONDS,
                retries={"total_max_attempts": 1},
            )
        )
        found = session.get_credentials()
        if found is None:
            raise RequestFailed(
                "NO_CREDENTIALS",
                "no credentials: give the pods' service account a role, or set accessKeyId and "
                "secretAccessKey",
            )
        return found
