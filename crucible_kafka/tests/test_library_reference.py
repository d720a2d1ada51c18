"""The page of the library says what its docstrings, signatures and error texts say."""

import re

import crucible_kafka
from crucible_kafka.library_reference import PAGE, page


def test_page_of_the_library_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m crucible_kafka.library_reference"


def test_every_name_of_the_library_is_on_its_page() -> None:
    text = page()
    assert [name for name in crucible_kafka.__all__ if not re.search(rf"\b{name}\b", text)] == []
