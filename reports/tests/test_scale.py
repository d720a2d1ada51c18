"""Generated histories of any size: a clean one passes, and each planted violation is found at its place."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from reports.rows import END_OF_RUN_US
from reports.scale.__main__ import main
from reports.scale.load import PIECE
from reports.scale.measuring import Measured, draw, remember, remembered, table
from reports.scale.violations import BROKEN, planted
from reports.scale.writing import appends_for, write_history
from reports.schema import TABLES, arrow_schema, files_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPERATIONS = 100_000
UNSEEN = "unseen"
"""A lost record is unseen, too."""


def test_files_have_the_schema_of_runs(tmp_path: Path) -> None:
    written = write_history(tmp_path, 2_000)
    assert abs(written.operations - 2_000) < 200
    assert written.records_read > 5 * written.operations
    for each in TABLES:
        for file in files_of(tmp_path, each):
            assert pq.read_schema(file) == arrow_schema(each)
    (assignments,) = tmp_path.glob("history/assignments*.parquet")
    assert set(pq.read_table(assignments).column("until_us").to_pylist()) == {END_OF_RUN_US}


def test_seed_and_a_size_always_give_the_same_history(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        write_history(tmp_path / name, 2_000, seed)
    one, same, other = (
        pq.read_table(tmp_path / each / "history" / "runs-scale.parquet") for each in ("one", "same", "other")
    )
    assert one == same != other


def test_violations_lie_at_places_of_their_own() -> None:
    appends = appends_for(10 * OPERATIONS)
    places = [planted(appends, seed).places for seed in range(20)]
    assert all(set(place) == set(BROKEN) for place in places)
    assert len({(place.piece, place.append) for each in places for place in each.values()}) > 15 * len(BROKEN) // 2
    assert all(place.piece * PIECE + place.append < appends for each in places for place in each.values())


def test_too_short_a_history_has_no_room_for_violations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "1000", "--plant", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.thorough
def test_measurements_are_kept_reported_and_drawn(tmp_path: Path) -> None:
    for operations, wall_s in ((10, 5.0), (100, 9.0), (100, 8.0)):
        remember(Measured(operations, 120, 300, 10**6, wall_s, 12.0, 2**30, "passed"), tmp_path)
    assert [each.wall_s for each in remembered(tmp_path)] == [5.0, 8.0]
    assert "| 100 | 120 | 300 | 1 MB | 8 s | 12 s | 1.0 GiB |" in table(remembered(tmp_path))
    draw(remembered(tmp_path), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_each_planted_violation_is_found_and_nothing_else(spark: "SparkSession", tmp_path: Path) -> None:
    from reports.judge import compute_verdicts

    violations = planted(appends_for(OPERATIONS), 5)
    write_history(tmp_path / "planted", OPERATIONS, 5, violations)
    write_history(tmp_path / "clean", OPERATIONS, 6)
    verdict, clean = compute_verdicts([tmp_path / "planted", tmp_path / "clean"], spark)
    broken = {guarantee.name: guarantee for guarantee in verdict.guarantees if guarantee.status == "broken"}
    assert {name: one.anomalies for name, one in broken.items()} == dict.fromkeys((*BROKEN, UNSEEN), 1)
    for name in ("inconsistent-offsets", "corrupt-value", "poll-skip", "nonmonotonic-poll", "fetch-gap"):
        assert broken[name].examples[0].process == f"fetcher-{violations.places[name].fetcher}"
    assert not [guarantee.name for guarantee in clean.guarantees if guarantee.status == "broken"]
