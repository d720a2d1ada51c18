"""The guarantees of fetch sessions, judged by the frames before a broker that is not ours."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reports import schema
from reports.guarantees import names_on_the_wire
from reports.jobs.guarantee_job import guarantee_jobs
from reports.read_tables import JobConfig, reading
from reports.spark import sized_for
from reports.tests.planted_frames import EXACT, FOREIGN, LOST, ORDER, PLANTED_FRAMES, Wire, forgotten_with_followers

JUDGED = (ORDER, LOST, EXACT, FOREIGN)


@pytest.fixture(scope="module")
def broken(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return which guarantees each planted history breaks. All are judged in one go."""
    folder = tmp_path_factory.mktemp("frames")
    runs = []
    for plant in PLANTED_FRAMES:
        wire = Wire(nodes=3 if plant is forgotten_with_followers else 1)
        plant(wire)
        runs.append(folder / plant.__name__)
        for table, rows in ((schema.FRAMES, wire.frames), (schema.FRAME_LINES, wire.lines)):
            path = runs[-1] / table.path.replace("*", "-0")
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema.arrow_schema(table)), path)
    found: dict[str, set[str]] = {run.name: set() for run in runs}
    with sized_for(spark, 0), reading(spark, runs, JobConfig()) as tables:
        for job in guarantee_jobs():
            if job.name in JUDGED:
                for row in job.find(tables).collect():
                    assert row.detail
                    found[runs[row.run].name].add(job.name)
    return found


@pytest.mark.spark
@pytest.mark.clause("F-2", "F-4", "F-8", "F-9", "F-10", "F-14", "F-18")
@pytest.mark.parametrize("plant", PLANTED_FRAMES, ids=lambda plant: plant.__name__)
def test_only_planted_violations_are_found_in_frames(broken: dict[str, set[str]], plant: Any) -> None:
    assert broken[plant.__name__] == PLANTED_FRAMES[plant]


def test_each_frame_guarantee_has_job() -> None:
    jobs = {job.name: job for job in guarantee_jobs()}
    for name in names_on_the_wire():
        assert not jobs[name].missing({"frames", "frame_lines"})
        assert jobs[name].missing({"operations"})
