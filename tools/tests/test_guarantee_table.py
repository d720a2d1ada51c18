"""The page of guarantees in the documentation."""

from tools.guarantee_table import PAGE, page


def test_page_of_guarantees_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.guarantee_table"
