"""The file tables of READMEs."""

from pathlib import Path

import pytest

from tools.file_tables import BEGIN, END, ROOT, first_sentence, readmes, shortened, updated


@pytest.mark.parametrize("readme", readmes(), ids=lambda path: str(path.relative_to(ROOT)))
def test_table_is_up_to_date(readme: Path) -> None:
    assert readme.read_text(encoding="utf-8") == updated(readme), "run: python -m tools.file_tables"


def test_table_lists_modules_and_packages_and_leaves_the_rest_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "log" / "__init__.py").write_text('"""One log, in\nfile format 2."""')
    (tmp_path / "tests" / "__init__.py").write_text('"""Not listed."""')
    (tmp_path / "epochs.py").write_text('"""Leader epochs (KIP-101), in\n``file``. More.\n\nMuch more.\n"""')
    page = tmp_path / "README.md"
    page.write_text(f"before\n\n{BEGIN}old\n{END}\n\nafter\n")
    rows = "| `epochs.py` | Leader epochs (KIP-101), in `file` |\n| `log/` | One log, in file format 2 |\n"
    assert updated(page) == f"before\n\n{BEGIN}| file | contents |\n| --- | --- |\n{rows}{END}\n\nafter\n"


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("Faults of links: toxics of Toxiproxy, and probes of our own that show an effect", "Faults of links"),
        ("Faults of links: toxics and probes", "Faults of links: toxics and probes"),
        ("Runs a fleet from start to end: `python -m bench.fleet SPEC.json` or a spec", None),
        ("`crucible nightly`: play a night's stages within its budget, and report whether it is red", None),
        (
            "The metadata epoch (KIP-232): its propagation to nodes and to clients of them",
            "The metadata epoch (KIP-232)",
        ),
        ("FetchSnapshot as small values (A.json, B.json, KIP-630 and its draft)", "FetchSnapshot as small values"),
    ],
)
def test_long_sentence_is_shown_without_its_details(sentence: str, shown: str | None) -> None:
    assert shortened(sentence) == (shown or sentence)


def test_module_without_a_docstring_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("A = 1\n")
    with pytest.raises(ValueError, match="has no docstring"):
        first_sentence(tmp_path / "a.py")
