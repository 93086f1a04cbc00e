"""
Where a request goes: URLs by templates, and the endpoint that each belongs to. Pure.

A value never leaves the place that the template gave it: it is percent-encoded, and a URL whose
path would climb (`..`) is refused.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from outbox_core.contract.publishers.http import FIXED_HOST, HttpSettings
from outbox_core.errors import SettingsError
from outbox_relay.publishers.egress import PORTS, Blocked, Egress, parse_url
from outbox_relay.publishers.messages import TEMPLATE_FIELDS, Template

URL_FIELDS: Final = (*TEMPLATE_FIELDS, "aggregate_id")
CHECK_FIELDS: Final = (*URL_FIELDS, "idempotency_key", "event_id")
ENTITY_FIELDS: Final = ("entity_type", "entity_id")
LONGEST_URL_CHARS: Final = 8000
ENCODED_DOT: Final = re.compile(r"(?i)%2e")
SEPARATOR: Final = re.compile(r"(?i)/|%2f|%5c")
"""Of a path; the encoded ones too, since some servers decode a path before they resolve it."""


class Endpoint(NamedTuple):
    """What can fail alone."""

    scheme: str
    host: str
    port: int
    trusted: bool
    """Its host is in the settings; otherwise an event chose it."""

    @property
    def name(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def authority(self) -> str:
        """For the header `host`."""
        return _bracketed(self.host) if self.port == PORTS[self.scheme] else self.name


class Place(NamedTuple):
    endpoint: Endpoint
    target: str
    """Path and query, as the request line has them."""


def escape(value: str) -> str:
    return quote(value, safe="")


def event_template(settings: HttpSettings) -> Template | None:
    if settings.url is None:
        return None
    more = ENTITY_FIELDS if settings.request == "SorUpdate" else ()
    return _template(settings.url, "http.url", (*URL_FIELDS, *more))


def check_template(settings: HttpSettings) -> Template | None:
    if settings.check is None:
        return None
    if FIXED_HOST.match(settings.check.url) is None:
        raise SettingsError("http.check.url must not have a field in its host")
    return _template(settings.check.url, "http.check.url", CHECK_FIELDS)


def egress(settings: HttpSettings, trusted: bool) -> Egress:
    try:
        return Egress(settings.allowed_hosts, settings.allowed_networks, trusted)
    except ValueError as error:
        raise SettingsError(f"http.allowedHosts or http.allowedNetworks: {error}") from None


def _template(url: str, setting: str, fields: Sequence[str]) -> Template:
    return Template(url, setting, "URL", illegal_url, fields=fields, escape=escape)


def illegal_url(url: str) -> str | None:
    if len(url) > LONGEST_URL_CHARS:
        return f"it is longer than {LONGEST_URL_CHARS} characters"
    if "#" in url:
        return "it must not have a fragment"
    try:
        path = parse_url(url).path.partition("?")[0]
    except Blocked as error:
        return str(error)
    if {".", ".."} & set(SEPARATOR.split(ENCODED_DOT.sub(".", path))):
        return "a part of its path is `.` or `..`"
    return None


@lru_cache(10_000)
def place_of(url: str, trusted: bool) -> Place:
    """Of a legal URL."""
    scheme, host, port, path = parse_url(url)
    return Place(Endpoint(scheme, host, port, trusted), path)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
