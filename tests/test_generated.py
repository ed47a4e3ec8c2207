"""The generated parts of the pages are what the code gives today; `python -m tests.generated` writes them anew."""

import pytest

from .generated import PARTS, current, expected


@pytest.mark.parametrize(("page", "name"), PARTS)
def test_a_generated_part_is_what_the_code_gives(page: str, name: str) -> None:
    assert current(page, name) == expected(page, name)
