"""A night's file and tables, and the rule that says whether it is red."""

from dataclasses import fields
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from reports.night import (
    NIGHT_TABLES,
    Canary,
    FigureRow,
    Night,
    NightError,
    NightStage,
    PlayRow,
    night_folders,
    outcome_of,
    read_night,
    why_red,
    write_night,
    write_rows,
)
from reports.schema import TABLES
from reports.verdict import Outcome

FOUND = Canary(mutant="no_abort", scenario="14-x", seeds_tried=3, found=True, guarantee="torn-metadata")
NIGHT = Night(night="20260102-220000", started_us=1_000_000, budget_s=60.0, seed=7, finished=True, canary=FOUND)
PASSED = {"PASSED": 100}
HOUR_US = 3_600_000_000


def reasons(night: Night = NIGHT, plays: int = 100, earlier: tuple[int, ...] = (), now_us: int = 0) -> list[str]:
    return [each.text for each in why_red(night, plays, PASSED, earlier, now_us)]


def test_night_that_found_its_canary_and_nothing_else_is_green() -> None:
    assert why_red(NIGHT, 100, PASSED, [100] * 12) == ()
    assert outcome_of(()) is Outcome.PASSED


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.INVALID, Outcome.CRASHED])
def test_control_that_did_not_pass_makes_the_night_red_in_its_way(outcome: Outcome) -> None:
    reasons = why_red(NIGHT, 101, {**PASSED, outcome.name: 1}, [])
    assert [reason.text for reason in reasons] == [f"a control {outcome.name}"]
    assert outcome_of(reasons) is outcome


def test_night_whose_canary_lives_is_red_and_one_without_search_has_none() -> None:
    alive = msgspec.structs.replace(FOUND, found=False)
    assert reasons(msgspec.structs.replace(NIGHT, canary=alive)) == [
        "the canary lives: nothing killed no_abort in 3 seeds of 14-x"
    ]
    assert reasons(msgspec.structs.replace(NIGHT, canary=None)) == []


def test_night_with_less_than_half_the_plays_of_the_last_ten_is_red() -> None:
    earlier = (9_000, *range(100, 110))  # Eleven: the oldest one counts no more.
    assert reasons(plays=53, earlier=earlier) == []
    assert reasons(plays=52, earlier=earlier) == ["52 plays, less than half the median 104.5 of the nights before"]


def test_stage_that_failed_for_a_reason_of_its_own_makes_the_night_red() -> None:
    judges = NightStage(name="judges", planned_s=9, outcome="FAILED", detail="2 differences")
    search = NightStage(name="search", planned_s=9, outcome="FAILED")  # Its plays say so.
    assert reasons(msgspec.structs.replace(NIGHT, stages=(judges, search))) == [
        "the stage judges FAILED: 2 differences"
    ]


def test_newest_night_may_not_be_older_than_36_hours() -> None:
    assert reasons(now_us=NIGHT.started_us + 36 * HOUR_US) == []
    assert reasons(now_us=NIGHT.started_us + 37 * HOUR_US) == [
        "the newest night began 37 hours ago, which is more than 36"
    ]


def test_night_is_read_as_it_was_written_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / NIGHT.night
    write_night(folder, NIGHT)
    (tmp_path / "20260103-220000").mkdir()  # It was stopped before it began.
    (tmp_path / "notes").mkdir()
    assert night_folders(tmp_path) == [folder]
    assert read_night(folder) == NIGHT
    (folder / "night.json").write_text('{"night": 3}')
    with pytest.raises(NightError, match=r"night.json cannot be read"):
        read_night(folder)
    with pytest.raises(NightError, match="is not the folder of a night"):
        read_night(tmp_path)


def test_rows_are_read_as_they_were_written_and_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    figure = FigureRow("produce", "1 KiB", 3, "MB/s", "higher", 75.5, 60.0, 1.2, 1.1, 1.5, 3, "kafka")
    read = pq.read_table(write_rows(tmp_path, FigureRow, [figure, figure]))
    assert [tuple(row.values()) for row in read.to_pylist()] == [figure.values()] * 2
    empty = pq.read_table(write_rows(tmp_path, PlayRow, []))
    assert empty.num_rows == 0
    assert empty.schema.names == [field.name for field in fields(PlayRow)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures.parquet", "plays.parquet"]


def test_runs_history_has_no_table_of_a_night() -> None:
    assert not {table.name for table in NIGHT_TABLES.values()} & {table.name for table in TABLES}
