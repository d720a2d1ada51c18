"""A class of rows is a table: what its fields become in the history's files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from reports.columns import ROW_TABLES, Column, Later, Moment, Row, table
from reports.errors import SetupError
from reports.judge import report_runs
from reports.schema import TABLES, arrow_schema, damaged_file, documented
from reports.tests.history import Shape
from reports.tests.played import generate


def test_field_has_name_type_meaning_and_nullability() -> None:
    @table("sightings", "history/sightings*.parquet")
    @dataclass(slots=True)
    class SightingRow(Row):
        """A row of a test."""

        who: str
        at_us: Annotated[int, Moment("when")]
        error: Annotated[str | None, "why not"] = None
        sure: Annotated[bool, Later("since version 2")] = True

    try:
        made = ROW_TABLES[SightingRow]
    finally:
        del ROW_TABLES[SightingRow]
    assert (made.name, made.doc) == ("sightings", "A row of a test.")
    assert made.columns == (
        Column("who", "string", ""),
        Column("at_us", "int64", "when", is_moment=True),
        Column("error", "string", "why not", nullable=True),
        Column("sure", "bool", "since version 2", nullable=True),
    )
    assert SightingRow("a", 7).values() == ("a", 7, None, True)
    assert [str(each) for each in arrow_schema(made)] == [
        "pyarrow.Field<who: string not null>",
        "pyarrow.Field<at_us: int64 not null>",
        "pyarrow.Field<error: string>",
        "pyarrow.Field<sure: bool>",
    ]


def test_no_two_tables_share_a_name_or_their_files() -> None:
    assert len({each.name for each in TABLES}) == len({each.path for each in TABLES}) == len(TABLES)


def test_every_time_since_the_run_began_is_declared_as_one() -> None:
    """The recorder takes the run's start from exactly these columns; others in microseconds are durations."""
    ends: tuple[str, ...] = (
        "at_us",
        "from_us",
        "until_us",
        "end_us",
        "invoke_us",
        "intended_us",
        "complete_us",
        "since_us",
    )
    ends += ("queried_us", "received_us", "abort_us", "abort_end_us")
    for each in TABLES:
        for column in each.columns:
            assert column.is_moment == (column.name in ends), f"{each.name}.{column.name}"


def test_column_keeps_class_description_beside_equal_plain_one() -> None:
    note = "as returned"

    @table("note_alike", "history/note_alike*.parquet")
    @dataclass(slots=True)
    class NoteAlike(Row):
        plain: Annotated[int, note]
        later: Annotated[int, Later(note)] = -1
        moment: Annotated[int, Moment(note)] = 0

    columns = ROW_TABLES.pop(NoteAlike).columns
    assert [(column.nullable, column.is_moment) for column in columns] == [(False, False), (True, False), (False, True)]


def test_history_page_matches_declared_tables() -> None:
    page = Path(__file__).parents[2] / "docs" / "history.md"
    assert page.read_text(encoding="utf-8") == documented(), "python -m reports.schema > docs/history.md"


@pytest.mark.parametrize("keep", [0.5, -1])
def test_file_that_was_cut_short_is_named_before_spark_starts(tmp_path: Path, keep: float) -> None:
    run = generate(1, Shape(seconds=2)).write(tmp_path / "run")
    assert damaged_file([run]) is None
    (file, *_) = sorted(run.glob("history/runs*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep)] if keep > 0 else whole[:-1])
    with pytest.raises(SetupError) as refusal:
        report_runs([run])
    assert str(refusal.value) == f"{file} is damaged or cut short: restore it from a copy, or play the run again."
