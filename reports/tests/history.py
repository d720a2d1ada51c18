"""A history as rows that a test can edit, and as the files of a run. ``played.py`` makes valid ones."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reports import schema
from reports.manifest import Expectations, Manifest, write_manifest

TOPIC = "orders"
NODE = 0
Row = dict[str, object]


def int_of(row: Row, key: str) -> int:
    value = row[key]
    assert isinstance(value, int)
    return value


def named_by(
    tests: Iterable[pytest.Function], names: Iterable[str], without_name: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return those names of histories that the tests examine, in their order: a test names one by its parameter
    ``name``, and ``without_name`` has those of the tests without one."""
    examined: set[object] = set()
    for test in tests:
        parameters = test.callspec.params if hasattr(test, "callspec") else {}
        examined |= {parameters["name"]} if "name" in parameters else {*without_name[test.originalname]}
    return [name for name in names if name in examined]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    kind: str
    at_us: int
    until_us: int
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    seconds: int = 6
    partitions: int = 3
    producers: int = 2
    fetchers: int = 3
    rate_per_s: int = 20
    """Operations per second and client."""
    batch: int = 5
    faults: tuple[Fault, ...] = (
        Fault("drop_response", "response_dropped", 2_200_000, 2_200_000, "fetcher-1"),
        Fault("kill", "node_killed", 3_000_000, 3_600_000),
    )
    workers: int = 2
    histograms: bool = True


STANDARD = Shape()


@dataclass
class History:
    shape: Shape
    seed: int
    tables: dict[str, list[Row]] = field(default_factory=lambda: {table.name: [] for table in schema.TABLES})
    config: dict[str, str] = field(default_factory=dict)

    def rows(self, table: str, **equal: object) -> list[Row]:
        return [row for row in self.tables[table] if all(row[key] == value for key, value in equal.items())]

    def drop(self, table: str, row: Row) -> None:
        self.tables[table] = [each for each in self.tables[table] if each is not row]

    def manifest(self, **changes: object) -> Manifest:
        values: dict[str, object] = {
            "scenario": "generated",
            "title": "A generated history",
            "seed": self.seed,
            "world": "sim",
            "repeat_command": f"crucible sim generated --seed {self.seed}",
            "run_id": f"generated-{self.seed}",
            "duration_us": self.shape.seconds * 1_000_000,
            "config": {
                "max.incremental.fetch.session.cache.slots": "1000",
                "min.incremental.fetch.session.eviction.ms": "60000",
                **self.config,
            },
            "expectations": Expectations(
                faults=tuple(fault.name for fault in self.shape.faults), min_fetches=10, min_acked=10
            ),
        }
        return Manifest(**{**values, **changes})  # type: ignore[arg-type]

    def write(self, run_dir: Path, *, without: tuple[str, ...] = (), **manifest: object) -> Path:
        for table in schema.TABLES:
            rows = self.tables[table.name]
            if rows and table.name not in without:
                path = run_dir / table.path.replace("*", "-0" if table.name != "latency" else "0")
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(rows, schema=schema.arrow_schema(table)), path)
        write_manifest(run_dir, self.manifest(**manifest))
        return run_dir
