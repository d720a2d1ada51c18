"""The legend of clause prefixes in the broker's README."""

import pytest

from tools.clause_legend import BEGIN, CLAUSES, END, PAGE, updated


def test_legend_of_clauses_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert updated(page, CLAUSES.read_text(encoding="utf-8")) == page, "run python -m tools.clause_legend"


def test_each_prefix_has_its_range_subject_and_source() -> None:
    clauses = '[A]\ntitle = "Acks (KIP-1, KIP-2)"\n1 = "one"\n2 = "two"\n[open]\ntitle = "none"\nA-1 = "why"\n'
    legend = updated(f"before\n{BEGIN}old\n{END}\nafter\n", clauses)
    assert "| A-1 to A-2 | Acks | KIP-1, KIP-2 |" in legend
    assert "old" not in legend
    assert "open" not in legend
    assert legend.startswith("before\n")
    assert legend.endswith(f"{END}\nafter\n")


def test_title_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="title of \\[A\\]"):
        updated(f"{BEGIN}{END}", '[A]\ntitle = "Acks"\n1 = "one"\n')
