"""The folder of a run: its contents, and the conversion of the nodes' traces. ``reports`` describes its tables and
manifest.

A node appends its trace as JSON lines, and the suite converts them to Parquet after the run: no node imports pyarrow,
which costs 0.3 s and 42 MiB. A line is in the page cache before the node goes on, so a SIGKILL loses none.
"""

import json
import os
import pickle
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from chaos.live.errors import SetupError
from reports.columns import Table
from reports.manifest import producer_expiration_us
from reports.parts import OPEN
from reports.rows import BrokerSample, FaultRow
from reports.schema import BROKER, FAULTS, FETCH_COSTS, FRAME_LINES, FRAMES, TRACE, arrow_schema
from scenarios.model import Scenario

PARQUET_END = b"PAR1"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths below one run's folder, and operations on them."""

    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def data(self) -> Path:
        """The nodes' data folders, one for each."""
        return self.path / "data"

    @property
    def mirror_target(self) -> Path:
        """The data of the cluster that a mirror copies to."""
        return self.data / "target"

    @property
    def spools(self) -> Path:
        return self.path / "trace" / "spool"

    @property
    def scenario(self) -> Path:
        """The pickled scenario for the nodes' processes. It is removed when the trace is collected."""
        return self.path / "trace" / "scenario.pickle"

    @property
    def hit_counts(self) -> Path:
        """Folder that nodes share during the run, with the numbers of hits (``FileHitCounter``) and requests of nodes.
        It is removed when the trace is collected."""
        return self.path / "trace" / "hit-counts"

    def producer_expiration_us(self) -> int | None:
        """Return how long the run's brokers keep the ID of an idle producer; None if the run is over."""
        try:
            scenario: Scenario = pickle.loads(self.scenario.read_bytes())
        except (FileNotFoundError, EOFError, pickle.UnpicklingError):  # It is written or removed at this moment.
            return None
        return producer_expiration_us(dict(scenario.cluster.config))

    def make(self) -> None:
        """Create the folder. Raise SetupError if it is not empty or cannot be written."""
        try:
            if self.path.exists() and any(self.path.iterdir()):
                raise SetupError(f"The folder {self.path} is not empty: give --out a new one.")
            for folder in (self.logs, self.data, self.spools):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise SetupError(
                f"Cannot write to {self.path} ({failure.strerror}): give --out another folder."
            ) from failure

    def discard(self) -> None:
        """Remove the folder of a run that never began, so that it can be retried."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write_faults(self, rows: Iterable[FaultRow]) -> None:
        ordered = sorted(rows, key=lambda row: (row.at_us, row.name, row.hit))
        write_table(FAULTS, (list(row.values()) for row in ordered), self.path / "faults.parquet")

    def write_samples(self, rows: Iterable[BrokerSample]) -> None:
        write_table(BROKER, (list(row.values()) for row in rows), self.path / "trace" / "broker.parquet")

    def set_torn_aside(self) -> list[str]:
        """Rename each file that its writer did not finish, and return the names. The file of a writer that was killed
        has no footer, so a judge cannot read it."""
        opened = self.path.glob(f"*/*{OPEN}")
        torn = [*opened, *(each for each in self.path.glob("*/*.parquet") if not _is_whole(each))]
        return [each.rename(each.with_suffix(".torn")).name for each in sorted(torn)]

    def collect_trace(self) -> int:
        """Write the spools of all nodes as Parquet, and remove them. Return the number of rows of the trace."""
        rows = convert_spools(self.spools, self.path)
        for spool in self.spools.iterdir():
            spool.unlink()
        self.spools.rmdir()
        shutil.rmtree(self.hit_counts, ignore_errors=True)
        self.scenario.unlink(missing_ok=True)
        return rows


def _is_whole(parquet: Path) -> bool:
    with parquet.open("rb") as file:
        file.seek(max(0, parquet.stat().st_size - len(PARQUET_END)))
        return file.read() == PARQUET_END


ROWS_PER_GROUP = 50_000
COSTS = "fetch_costs-"


def costs_beside(spool: Path) -> Path:
    """Return where ``chaos.live.node_side.fetch_costs`` writes, for the incarnation whose trace goes to ``spool``."""
    return spool.with_name(spool.name.replace("node-", COSTS, 1))


class TraceSpool:
    """Appends rows to one file. A row is a sequence of values in the order of the table's columns."""

    def __init__(self, path: Path) -> None:
        import msgspec

        self._encode = msgspec.json.Encoder().encode
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def add(self, values: Sequence[str | int]) -> None:
        os.write(self._descriptor, self._encode(values) + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def read_spool(path: Path) -> Iterator[list[Any]]:
    """Yield the rows of a spool. A last line that a power loss tore is omitted."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def convert_spools(spools: Path, run_folder: Path) -> int:
    """Write ``trace/node*.parquet`` from ``node-<id>-<incarnation>.jsonl``, and beside it what fetches cost and what
    passed the frame proxy. Return the number of rows of the trace."""
    rows = {}
    kinds = ((FETCH_COSTS, COSTS), (TRACE, "node-"), (FRAMES, "frames-"), (FRAME_LINES, "frame_lines-"))
    for table, pattern in ((table, f"{start}*.jsonl") for table, start in kinds):
        written = (
            write_table(table, read_spool(spool), run_folder / "trace" / f"{spool.stem}.parquet")
            for spool in sorted(spools.glob(pattern))
        )
        rows[table] = sum(written)
    return rows[TRACE]


@dataclass(slots=True)
class SpoolFollower:
    """Converts the nodes' traces to Parquet while they grow."""

    spools: Path
    read_bytes: dict[str, int] = field(default_factory=dict)
    """Position in each spool, by its name."""
    parts: int = 0

    def take(self, run_folder: Path) -> None:
        """Write the rows that have come since the last call as a further part of the trace in this folder."""
        for spool in sorted(self.spools.glob("node-*.jsonl")):
            begun = self.read_bytes.get(spool.name, 0)
            target = run_folder / "trace" / f"{spool.stem}.{self.parts:04}.parquet"
            try:
                write_table(TRACE, self._new_rows(spool), target)
            except FileNotFoundError:  # The run has ended, and its traces were converted.
                continue
            if self.read_bytes.get(spool.name, 0) == begun:
                target.unlink()
        self.parts += 1

    def _new_rows(self, spool: Path) -> Iterator[list[Any]]:
        with spool.open("rb") as file:
            file.seek(self.read_bytes.get(spool.name, 0))
            for line in file:
                if line.endswith(b"\n"):
                    self.read_bytes[spool.name] = self.read_bytes.get(spool.name, 0) + len(line)
                    yield json.loads(line)


def gave_sessions(run_folder: Path) -> bool:
    """Return whether an external node granted any fetch session, according to the frames."""
    import pyarrow.parquet as pq

    return any(
        given.as_py()
        for file in run_folder.glob(FRAMES.path)
        for given in pq.read_table(file, columns=["response_session_id"]).column(0).unique()
    )


def write_table(table: Table, rows: Iterator[list[Any]], target: Path) -> int:
    """Write rows of one table of the history schema as Parquet, in groups that fit in memory. Return their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(table)
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        while group := list(islice(rows, ROWS_PER_GROUP)):
            columns = zip(*group, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            written += len(group)
    return written
