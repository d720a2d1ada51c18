"""Rows, recorder, sinks: recorded rows are written with the run's start subtracted."""

import time
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.fleet.behaviours.protocol import Now
from bench.fleet.parquet_sink import ParquetSink, file_of
from bench.fleet.recorder import TABLE_OF, MemorySink, Recorder, columns_of
from bench.locust.generator import Sample
from reports.parts import Progress, read_progress, whole_parts
from reports.rows import (
    END_OF_RUN_US,
    AssignmentRow,
    EndRow,
    MembershipRow,
    OperationRow,
    PositionRow,
    ResetRow,
    SpanRow,
)
from reports.schema import TABLES

ORIGIN = 5_000_000_000


def operation(
    index: int, intended: int, invoke: int, complete: int, kind: str = "ok", f: str = "fetch", error: str | None = None
) -> OperationRow:
    return OperationRow("p", index, f, kind, ORIGIN + intended, ORIGIN + invoke, ORIGIN + complete, 0, error)


def test_parquet_files_have_recorded_rows_with_relative_times(tmp_path: Path) -> None:
    recorder = Recorder(ParquetSink(tmp_path, "worker-0"), "worker-0", ORIGIN, batch_rows=2)
    rows = [operation(number, 10, 20, 1_000_020 + number) for number in range(5)]
    run = SpanRow("p", 0, 0, "read", "hot", 1, 7, 3, 9, "w", 40, True)
    position = PositionRow("p", 0, "hot", 1, 7, 10, 10, 0, None)
    assignment = AssignmentRow("p", "hot", 1, ORIGIN + 4, END_OF_RUN_US, 0)
    recorder.record([*rows, run, position, assignment, EndRow("hot", 1, 0, 10, ORIGIN + 77)])
    recorder.note_generator(ORIGIN + 1_500_000, Sample(420, 700, 12_000))
    recorder.close(Now(ORIGIN + 2_000_000, 0))
    read = pq.read_table(tmp_path / "history" / "operations-worker-0.parquet").to_pylist()
    assert [(each["index"], each["intended_us"], each["complete_us"]) for each in read] == [
        (number, 10, 1_000_020 + number) for number in range(5)
    ]
    [kept] = pq.read_table(tmp_path / "history" / "assignments-worker-0.parquet").to_pylist()
    assert (kept["from_us"], kept["until_us"]) == (4, END_OF_RUN_US)
    [kept] = pq.read_table(tmp_path / "history" / "runs-worker-0.parquet").to_pylist()
    assert kept == {field.name: getattr(run, field.name) for field in fields(run)}
    [end] = pq.read_table(tmp_path / "history" / "ends-worker-0.parquet").to_pylist()
    assert end["end_us"] == 77
    latency = pq.read_table(tmp_path / "latency" / "worker-0.parquet").to_pylist()
    assert sum(each["count"] for each in latency if each["measure"] == "service") == 5
    load = {each["second"]: each for each in pq.read_table(tmp_path / "history" / "load-worker-0.parquet").to_pylist()}
    assert (load[0]["offered"], load[1]["completed"], load[1]["cpu_permille"]) == (5, 5, 420)


def test_times_of_groups_rows_are_since_the_start_too() -> None:
    joined = MembershipRow("p", "g", "m", 3, "joined", "", -1, ORIGIN + 90, ORIGIN + 40)
    columns = columns_of([joined], ORIGIN)
    assert (columns["at_us"], columns["since_us"]) == ([90], [40])
    reset = ResetRow("p", 1, "hot", 0, 7, 0, "OFFSET_OUT_OF_RANGE", -1, ORIGIN + 5)
    assert columns_of([reset], ORIGIN)["at_us"] == [5]


def test_each_table_has_file_of_schema(tmp_path: Path) -> None:
    for table in TABLE_OF.values():
        schema = next(each for each in TABLES if each.name == table)
        assert file_of(tmp_path, table, "w").relative_to(tmp_path).match(schema.path)


def test_service_and_response_time_differ_by_the_wait_before_the_send() -> None:
    recorder = Recorder(MemorySink(), "w", ORIGIN)
    recorder.record([operation(0, 0, 100, 150), operation(1, 0, 0, 900_000, "info", error="timeout")])
    found = {(row.measure, row.low_us <= 150 < row.high_us) for row in recorder.latency_rows() if row.low_us < 200}
    assert found == {("service", False), ("response", True)}
    assert sum(row.count for row in recorder.latency_rows() if row.low_us > 800_000) == 2, "a timeout has a latency"


def test_load_counts_operations_by_second() -> None:
    recorder = Recorder(MemorySink(), "w", ORIGIN)
    recorder.record(
        [
            operation(0, 900_000, 1_100_000, 2_000_001),
            operation(1, 950_000, 950_000, 990_000, "fail", error="x"),
            operation(2, 960_000, 3_000_000, 3_000_000, "fail", error="not_sent"),
        ]
    )
    rows = {row.second: row for row in recorder.load_rows()}
    assert (rows[0].offered, rows[0].sent, rows[0].failed) == (3, 1, 1)
    assert (rows[1].sent, rows[1].max_slip_us) == (1, 200_000)
    assert (rows[2].completed, rows[3].failed) == (1, 1)
    assert recorder.totals.ok == 1


def test_disk_that_fails_is_reported_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file where a folder should be")
    recorder = Recorder(ParquetSink(tmp_path, "w"), "w", 0)
    recorder.record([operation(0, 0, 1, 2)])
    with pytest.raises(OSError, match="history could not be written"):
        recorder.close(Now(3, 0))


def test_columns_of_nothing_are_nothing() -> None:
    assert columns_of([], 5) == {}


def test_reported_part_is_complete_up_to_its_time(tmp_path: Path) -> None:
    recorder = Recorder(ParquetSink(tmp_path, "w"), "w", ORIGIN, roll_s=10)
    recorder.record([operation(0, 0, 1, 2), SpanRow("p", 0, 0, "read", "hot", 1, 7, 3, 9, "w", 40, True)])
    recorder.write_part(ORIGIN + 9_000_000)
    recorder.record([operation(1, 3, 4, 5)])
    recorder.write_part(ORIGIN + 11_000_000)
    recorder.record([operation(2, 6, 7, 8)])
    recorder.write_part(ORIGIN + 12_000_000)
    progress = _awaited(tmp_path)
    assert (progress.parts, progress.until_us, progress.closed) == (1, 11_000_000, False)
    assert _indexes(tmp_path, "operations", progress) == [0, 1], "what came later is in the next part"
    assert _indexes(tmp_path, "runs", progress) == [0]
    recorder.close(Now(ORIGIN + 13_000_000, 0))
    (progress,) = read_progress(tmp_path)
    assert progress.closed
    assert _indexes(tmp_path, "operations", progress) == [0, 1, 2]
    assert not list(tmp_path.glob("*/*.open"))


def _awaited(run_dir: Path) -> Progress:
    """The sink writes from a thread of its own."""
    deadline_s = time.monotonic() + 20
    while not read_progress(run_dir) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    (progress,) = read_progress(run_dir)
    return progress


def _indexes(run_dir: Path, table: str, progress: Progress) -> list[int]:
    (schema,) = [each for each in TABLES if each.name == table]
    files = whole_parts(run_dir, schema, progress)
    return [each for file in files for each in pq.read_table(file).column("index").to_pylist()]


def test_live_figures_are_those_of_the_last_whole_seconds() -> None:
    recorder = Recorder(MemorySink(), "w", ORIGIN)
    quick = [operation(number, 1_000_000, 1_000_000, 1_001_000) for number in range(99)]
    slow = operation(99, 1_500_000, 1_500_000, 1_900_000)
    recorder.record(
        [operation(1000, 100, 100, 900_000), *quick, slow, operation(1001, 4_000_000, 4_000_000, 4_000_100)]
    )
    live = recorder.live(ORIGIN + 4_500_000, 3)
    assert (live.offered, live.completed, live.produce_p99_us) == (100, 100, 0)
    assert live.fetch_p99_us == 1000 // 8 * 8, "99 of 100 took a millisecond"
    assert recorder.live(ORIGIN + 1_500_000, 1).fetch_p99_us > 890_000, "the second before"
    assert recorder.live(ORIGIN + 60_000_000, 3).offered == 0
