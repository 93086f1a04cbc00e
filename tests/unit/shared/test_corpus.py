"""The corpus, as the models judge it; tests/crds asks the API server."""

import pytest

from fixtures.corpus import KINDS, Case, cases, examples, models_refusal


def refusal(case: Case) -> str:
    *before, after = case.bodies
    return models_refusal(after, before[0] if before else None)


@pytest.mark.parametrize("case", cases("good"), ids=str)
def test_the_models_take_what_is_right(case: Case) -> None:
    assert refusal(case) == ""


@pytest.mark.parametrize("case", examples(), ids=str)
def test_the_models_take_every_example(case: Case) -> None:
    assert case.bodies
    for body in case.bodies:
        assert models_refusal(body) == ""


@pytest.mark.parametrize("case", cases("bad"), ids=str)
def test_the_models_refuse_what_is_wrong_and_explain_it(case: Case) -> None:
    assert case.words, "say in a comment what must be said"
    said = refusal(case)
    assert said, "it was taken"
    for words in case.words:
        assert words in said


@pytest.mark.parametrize("case", [c for c in cases("bad") if len(c.bodies) == 2], ids=str)
def test_what_a_bad_change_leads_to_would_be_right_by_itself(case: Case) -> None:
    for body in case.bodies:
        KINDS[body["kind"]].parse(body)
