"""The table of fault kinds in the documentation."""

from tools.fault_kind_table import PAGE, updated


def test_table_of_fault_kinds_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert updated(page) == page, "run python -m tools.fault_kind_table"
