"""Where requests go, and which region they are signed for."""

import os
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from outbox_core.contract.publishers.sqs import SqsSettings
from outbox_core.errors import SettingsError

REGION_IN_HOST: Final = re.compile(
    # sqs.eu-west-1.amazonaws.com, also in a VPC; the older eu-west-1.queue.amazonaws.com
    r"(?:^|\.)(?:sqs(?:-fips)?\.([a-z0-9-]+)(?:\.vpce)?|([a-z0-9-]+)\.queue)\.(?:amazonaws\.com|api\.aws)"
)


def endpoint_of(settings: SqsSettings) -> str:
    parts = _parsed("queueUrl", settings.queue_url)
    if settings.endpoint is not None:
        _parsed("endpoint", settings.endpoint)
        return settings.endpoint
    return f"{parts.scheme}://{parts.netloc}"


def region_of(settings: SqsSettings) -> str:
    if settings.region is not None:
        return settings.region
    if found := REGION_IN_HOST.search(_parsed("queueUrl", settings.queue_url).hostname or ""):
        return found[1] or found[2]
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise SettingsError("sqs.region: neither queueUrl nor AWS_REGION contains it; set it")
    return region


def _parsed(setting: str, url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # reading it checks it
        (parts.hostname or "").encode("idna")  # as connecting does it
    except ValueError as error:
        raise SettingsError(f"sqs.{setting} {url}: {error}") from None
    return parts
