"""
What can be known without sending an event: for `outbox-relay check`.

Connects to the endpoints, but sends no request: only the receiver knows what one would cause.
"""

from collections.abc import Callable, Sequence
from typing import Final

from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.errors import PublisherError
from outbox_relay.publishers.http.urls import (
    ENTITY_FIELDS,
    Endpoint,
    check_template,
    event_template,
    place_of,
)
from outbox_relay.publishers.protocol import CheckResult, Sample

MOST_ENDPOINTS: Final = 20
"""More are not tried: each may take seconds."""
PLACEHOLDERS: Final = dict.fromkeys((*ENTITY_FIELDS, "aggregate_id"), "x")
"""For fields that a sample does not have: only the URL's host matters here."""


def check_http(
    settings: HttpSettings, samples: Sequence[Sample], connect: Callable[[Endpoint], None]
) -> list[CheckResult]:
    results = []
    endpoints = _endpoints(settings, samples)
    for endpoint in endpoints[:MOST_ENDPOINTS]:
        try:
            connect(endpoint)
        except PublisherError as error:
            results.append(CheckResult("fail", str(error)))
        else:
            results.append(CheckResult("ok", f"{endpoint.name} accepts connections"))
        if endpoint.scheme == "http" and settings.auth is not None:
            text = f"{endpoint.name}: the login is sent without encryption"
            results.append(CheckResult("warn", text, "use https"))
    if len(endpoints) > MOST_ENDPOINTS:
        left = len(endpoints) - MOST_ENDPOINTS
        results.append(CheckResult("warn", f"{left} more endpoint(s) were not tried"))
    if settings.request == "Payload":
        hosts = ", ".join(settings.allowed_hosts[:5])
        text = f"the events choose the URL, among the allowed hosts ({hosts})"
        results.append(CheckResult("ok", text))
    elif not endpoints:
        results.append(CheckResult("warn", "no recent event has a URL"))
    return results


def _endpoints(settings: HttpSettings, samples: Sequence[Sample]) -> list[Endpoint]:
    found: dict[Endpoint, None] = {}
    if template := event_template(settings):
        filled = [{**PLACEHOLDERS, **sample} for sample in samples]
        for url in template.names(filled):
            found[place_of(url, not settings.hosts_from_events).endpoint] = None
        if not settings.hosts_from_events and settings.url is not None:
            found[place_of(settings.url.split("{")[0], True).endpoint] = None
    if settings.check is not None and check_template(settings):
        found[place_of(settings.check.url.split("{")[0], True).endpoint] = None
    return list(found)
