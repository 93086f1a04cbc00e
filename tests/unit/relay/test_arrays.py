"""Arrays in PostgreSQL's own notation: quick for what is usual, right for everything."""

import pytest

from outbox_core.store.deliveries import array_of_numbers, array_of_texts


def test_numbers() -> None:
    assert array_of_numbers([1, 22, 333]) == "{1,22,333}"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["orders[3]@1042"], '{"orders[3]@1042"}'),
        (["a", "b c", "{,}"], '{"a","b c","{,}"}'),
        (['say "x"', "y"], '{"say \\"x\\"","y"}'),
        (["back\\slash"], '{"back\\\\slash"}'),
        (['"'], '{"\\""}'),
        ([""], '{""}'),
    ],
)
def test_texts(values: list[str], expected: str) -> None:
    assert array_of_texts(values) == expected
