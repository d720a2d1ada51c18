"""A watched run: nothing is red while it is clean, a violation is reported at once, and its end brings the verdict."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reports import watch
from reports.early import early_verdict, link_whole_parts
from reports.parts import Progress, part_of, write_progress
from reports.schema import TABLES, arrow_schema
from reports.tests.cuts import part_of as rows_until
from reports.tests.history import History, Shape, int_of
from reports.tests.played import generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT = Shape(rate_per_s=8)


def write_part(run_dir: Path, history: History, after_us: int, until_us: int, part: int) -> None:
    """Write what processes have recorded since the last part, as the one writer does."""
    before, now = (rows_until(history, lambda _, us=us: us, 0) for us in (after_us, until_us))  # type: ignore[misc]
    for table in TABLES:
        old = {id(row) for row in before.tables[table.name]}
        rows = [row for row in now.tables[table.name] if id(row) not in old]
        if rows:
            path = part_of(run_dir, table, "worker-0", part)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(table)), path)
    write_progress(run_dir, Progress("worker-0", part + 1, until_us))


def test_only_complete_parts_are_read(tmp_path: Path) -> None:
    history = generate(1, SHORT)
    assert link_whole_parts(tmp_path / "run", tmp_path / "scratch") is None
    write_part(tmp_path / "run", history, -1, 2_000_000, 0)
    write_part(tmp_path / "run", history, 2_000_000, 3_000_000, 1)
    write_progress(tmp_path / "run", Progress("worker-0", 1, 2_000_000))
    assert link_whole_parts(tmp_path / "run", tmp_path / "scratch") == 2_000_000
    names = {path.name for path in (tmp_path / "scratch" / "history").iterdir()}
    assert "operations-worker-0.parquet" in names
    assert not [name for name in names if ".0001." in name]


def test_history_extends_to_slowest_writer(tmp_path: Path) -> None:
    for name, until_us, closed in (("a", 30, False), ("b", 60, False), ("c", 10, True)):
        write_progress(tmp_path, Progress(name, 1, until_us, closed))
    assert link_whole_parts(tmp_path, tmp_path / "scratch") == 30


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_violation_is_red_in_first_check_that_includes_it(spark: "SparkSession", tmp_path: Path) -> None:
    history = generate(1, SHORT)
    bad = history.rows("runs", kind="read", process="fetcher-0")[-5]
    bad["valid"] = False
    (read,) = history.rows("operations", process="fetcher-0", index=bad["index"])
    shown_us = int_of(read, "complete_us")
    run_dir, scratch = tmp_path / "run", tmp_path / "scratch"
    write_part(run_dir, history, -1, shown_us - 1, 0)
    first = early_verdict(run_dir, scratch, spark, lambda _: None)
    assert first is not None
    assert first.violations == ()
    assert "inconsistent-offsets" in first.judged
    write_part(run_dir, history, shown_us - 1, shown_us, 1)
    second = early_verdict(run_dir, scratch, spark, lambda _: None)
    assert second is not None
    assert [(violation.guarantee, violation.total, violation.at_us) for violation in second.violations] == [
        ("corrupt-value", 1, shown_us)
    ]
    assert second.operations > first.operations


def test_broken_guarantee_is_reported_once(tmp_path: Path) -> None:
    from reports.early import EarlyVerdict, Violation

    lines: list[str] = []
    watched = watch.Watch(tmp_path, lambda _: None, lambda: None, lines.append)
    seen = EarlyVerdict(5_000_000, 1_234, ("duplicate",), (Violation("duplicate", 2, 4_000_000, "Two of it."),))
    watched._tell(seen, 3.0)
    watched._tell(seen, 3.0)
    assert [line for line in lines if line.startswith("RED")] == ["RED: duplicate was broken at 4.000 s: Two of it."]
    assert lines[-1] == "up to 5 s: duplicate broken (1,234 operations, in 3 s)"
    assert watched.broken == {"duplicate": "Two of it."}
