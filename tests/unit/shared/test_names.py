"""Names of children: valid and different, whatever a resource is called."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.made_resources import outbox_relay
from outbox_operator.shared.names import LABEL_CHARACTERS, child_name, fitting, selector

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,100}[a-z0-9])?", fullmatch=True)
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def test_an_ordinary_name_stays_as_it_is() -> None:
    assert child_name(outbox_relay(name="orders"), "relay") == "orders-relay"
    assert child_name(outbox_relay(name="orders"), "reaper") == "orders-reaper"


@given(NAMES)
def test_every_name_makes_names_that_every_kind_takes(name: str) -> None:
    relay = outbox_relay(name=name)
    for role in ("relay", "reaper", "retire"):
        made = child_name(relay, role)
        assert SERVICE.fullmatch(made), made
        assert len(made) <= 52  # a CronJob's
    assert len(selector(relay, "relay")["app.kubernetes.io/instance"]) <= LABEL_CHARACTERS


@pytest.mark.parametrize("other", ["a-b", "a..b", "a.b.", "A.b"])
def test_names_that_look_alike_make_different_ones(other: str) -> None:
    assert fitting("a.b", 44) != fitting(other, 44)


def test_two_long_names_that_begin_alike_make_different_ones() -> None:
    assert fitting("x" * 100 + "1", 44) != fitting("x" * 100 + "2", 44)
