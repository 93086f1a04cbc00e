"""Which hosts are the settings' own, and so trusted, and which an event chooses."""

import pytest
from pydantic import ValidationError

from outbox_core.contract.publishers.http import HttpSettings
from outbox_core.errors import SettingsError
from outbox_relay.publishers.http.urls import check_template, escape, illegal_url


@pytest.mark.parametrize(
    ("url", "chosen"),
    [
        ("https://hooks.example.com", False),
        ("https://hooks.example.com/{tenant_id}", False),
        ("https://hooks.example.com?{tenant_id}", False),
        ("http://{tenant_id}", True),
        ("http://{tenant_id}/", True),
        ("https://{tenant_id}.example.com/a", True),
        ("https://example.com:{tenant_id}/", True),
        ("https://example.com{{/{tenant_id}", True),
    ],
)
def test_a_host_is_trusted_only_where_the_url_spells_it_out(url: str, chosen: bool) -> None:
    settings = HttpSettings(url=url, allowed_hosts=("*",))
    assert settings.hosts_from_events is chosen


@pytest.mark.parametrize("scheme", ["HTTP", "hTTps", "ftp", "{event_type}", " http"])
def test_a_url_begins_with_its_scheme_in_small_letters(scheme: str) -> None:
    for settings in (
        {"url": f"{scheme}://{{tenant_id}}/"},
        {"url": "http://example.com/", "check": {"url": f"{scheme}://{{tenant_id}}/"}},
    ):
        with pytest.raises(ValidationError, match="url"):
            HttpSettings.model_validate(settings)


def test_no_event_chooses_the_host_of_a_check() -> None:
    settings = HttpSettings.model_validate(
        {"url": "http://example.com/", "check": {"url": "http://a.{tenant_id}/"}}
    )
    with pytest.raises(SettingsError, match=r"http\.check\.url"):
        check_template(settings)


@pytest.mark.parametrize("value", ["..", ".", "../x", "x/..", "x/../y", "..\\x"])
def test_a_value_that_climbs_is_refused_however_it_is_encoded(value: str) -> None:
    assert illegal_url(f"http://example.com/a/{escape(value)}/b")
    assert illegal_url(f"http://example.com/?a={escape(value)}") is None  # there it is no path


@pytest.mark.parametrize("value", ["a/b", "a..b/c", "...", "a\\b"])
def test_a_value_that_does_not_climb_is_taken(value: str) -> None:
    assert illegal_url(f"http://example.com/a/{escape(value)}/b") is None
