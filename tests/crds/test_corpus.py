"""One corpus, two verdicts: what the API server takes, the operator can read, and the reverse."""

import pytest

from fixtures.api_server import servers_refusal
from fixtures.cluster import Kube, Namespace
from fixtures.corpus import Case, cases, examples


def updates(folder: str) -> list[Case]:
    return [case for case in cases(folder) if len(case.bodies) == 2]


def creations(folder: str) -> list[Case]:
    return [case for case in cases(folder) if len(case.bodies) == 1]


@pytest.mark.parametrize("case", creations("good"), ids=str)
def test_the_api_server_takes_what_is_right(server: Kube, case: Case) -> None:
    assert servers_refusal(server, "default", case.bodies[0]) == ""


@pytest.mark.parametrize("case", examples(), ids=str)
def test_the_api_server_takes_every_example(server: Kube, case: Case) -> None:
    for body in case.bodies:
        body["metadata"].pop("namespace", None)  # which need not exist here
        assert servers_refusal(server, "default", body) == ""


@pytest.mark.parametrize("case", creations("bad"), ids=str)
def test_the_api_server_refuses_what_is_wrong_and_explains_it(server: Kube, case: Case) -> None:
    said = servers_refusal(server, "default", case.bodies[0])
    assert said, "it was taken"
    for words in case.words:
        assert words in said


@pytest.mark.parametrize("case", updates("good"), ids=str)
def test_the_api_server_takes_a_change_that_is_right(
    server: Kube, namespace: Namespace, case: Case
) -> None:
    before, after = case.bodies
    assert servers_refusal(server, namespace.name, after, before) == ""


@pytest.mark.parametrize("case", updates("bad"), ids=str)
def test_the_api_server_refuses_a_wrong_change_and_explains_it(
    server: Kube, namespace: Namespace, case: Case
) -> None:
    before, after = case.bodies
    said = servers_refusal(server, namespace.name, after, before)
    assert said, "it was taken"
    for words in case.words:
        assert words in said
