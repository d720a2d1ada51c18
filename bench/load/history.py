"""The history of a load worker for Spark: spans of sequences and its seconds (``reports/load_rows.py``), as Parquet.

Neighbouring spans of a partition are joined while they are of one second, so that a row has thousands of
records. A native thread writes a file each minute, since a file that is not whole cannot be read.
"""

import os
from _queue import SimpleQueue
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from bench.fleet.parquet_sink import native_thread
from bench.load.ledger import Findings
from bench.load.measures import Measures
from bench.load.spec import SPEC_NAME, LoadSpec
from reports.columns import Row
from reports.load_rows import LOAD_TABLES, RUN_NAME, JudgedLoad, LoadSecondRow, LoadSpan
from reports.parts import Progress, part_of, write_progress
from reports.schema import arrow_schema

HISTORY_FOLDER: Final = "history"
"""The folder of its files in that of the run (``reports/parts.py``)."""
OWN_DISK_VARIABLE: Final = "CRUCIBLE_OWN_DISK"
"""If this is set, a worker regards the run's folder as one of another machine."""
ROLL_US: Final = 60_000_000
"""The length of a file."""
Key = tuple[str, str, int, str]


@dataclass(slots=True)
class Spans:
    """The spans of one client. Times are since the start of the load."""

    client: str
    subscription: int  # -1 for a producer
    rows: list[Row]  # of the worker; what is complete goes there
    _number: int = 0
    _open: dict[Key, LoadSpan] = field(default_factory=dict)
    """by kind, topic, partition and writer: the span that the next one may continue"""
    _reached: dict[Key, int] = field(default_factory=dict)
    """by the same: the end of the highest sequences so far"""

    def add(self, kind: str, topic: str, partition: int, writer: str, first: int, records: int, at_us: int) -> None:
        key = (kind, topic, partition, writer)
        found = self._open.get(key)
        if found is not None:
            continues = found.first_sequence + found.records == first
            if continues and found.first_us // 1_000_000 == at_us // 1_000_000:
                found.records += records
                found.last_us = at_us
                self._reached[key] = max(self._reached[key], first + records)
                return
            self._end(key)
        if first < self._reached.get(key, 0):
            # What was read before it decides what it is: repeated or reordered. So that must have lower numbers.
            self.end()
        self._number += 1
        self._open[key] = LoadSpan(
            kind, self.subscription, self.client, self._number, topic, partition, writer, first, records, at_us, at_us
        )
        self._reached[key] = max(self._reached.get(key, 0), first + records)

    def _end(self, key: Key) -> None:
        self.rows.append(self._open.pop(key))

    def end(self) -> None:
        """Let no later span continue those so far."""
        self.rows.extend(self._open.values())
        self._open.clear()


def write_judged(folder: Path, spec: LoadSpec, exactly_once: bool, findings: Findings, compacted_keys: int = 0) -> None:
    """Write how Spark has to judge the run, and what the ledger found (``RUN_NAME``)."""
    run = JudgedLoad(
        workers=spec.workers,
        subscriptions=spec.subscriptions + spec.read_from_start,
        exactly_once=exactly_once,
        compacted_keys=compacted_keys,
        found=asdict(findings),
    )
    (folder / RUN_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(run)))


def shares_disk(out_dir: Path, spec: bytes) -> bool:
    """Return whether a worker that has got this spec writes to the disk of the master, which keeps it there."""
    if OWN_DISK_VARIABLE in os.environ:
        return False
    try:
        return (out_dir / SPEC_NAME).read_bytes() == spec
    except OSError:
        return False


class CopiedHistory:
    """The history of a worker of another machine. ``close`` sends its files to the master, the progress as the last,
    which says that it is whole. They are on the own disk until then."""

    def __init__(self, worker: int, send_file: Callable[[Path], None]) -> None:
        self._folder = TemporaryDirectory(prefix="crucible-history-")
        self._history = LoadHistory(Path(self._folder.name), worker)
        self._send_file = send_file
        self.client, self.roll = self._history.client, self._history.roll

    def close(self, measures: Measures) -> None:
        """:raises OSError: it could not be written here or there. :raises TimeoutError: the master did not respond."""
        with self._folder as folder:
            self._history.close(measures)
            files = [each for each in (Path(folder) / HISTORY_FOLDER).iterdir() if each.is_file()]
            for file in sorted(files, key=lambda path: (path.suffix == ".json", path.name)):
                self._send_file(file)


class LoadHistory:
    """The history of one worker. ``close`` waits until all is written.

    :raises OSError: from ``close``, if it could not be written.
    """

    def __init__(self, folder: Path, worker: int, start_thread: Callable[[Callable[[], None]], None] = native_thread):
        self._folder, self._worker = folder, worker
        self._rows: list[Row] = []
        self._clients: list[Spans] = []
        self._rolled_us = 0
        self._items: SimpleQueue[list[Row] | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        start_thread(self._work)

    def client(self, name: str, subscription: int = -1) -> Spans:
        """Return the spans of a producer, or of a subscription's reader."""
        made = Spans(name, subscription, self._rows)
        self._clients.append(made)
        return made

    def roll(self, now_us: int) -> None:
        """Write what there is, if the last time is a minute ago. Call it now and then."""
        if now_us - self._rolled_us >= ROLL_US:
            self._rolled_us = now_us
            self._hand_over()

    def close(self, measures: Measures) -> None:
        for at, second in sorted(measures.seconds.items()):
            counts = (second.offered, second.sent, second.acknowledged, second.failed, second.read)
            load = (second.cpu_permille, second.wanted_permille, second.lag_us)
            self._rows.append(LoadSecondRow(self._worker, at, *counts, *load))
        self._hand_over()
        self._items.put(None)
        failure = self._ended.get()
        if failure is not None:
            raise OSError(f"the history could not be written: {failure}") from failure

    def _hand_over(self) -> None:
        for client in self._clients:
            client.end()
        self._items.put(self._rows[:])
        self._rows.clear()

    def _work(self) -> None:
        """Write batches to Parquet. Only this thread imports pyarrow."""
        failure: BaseException | None = None
        part = 0
        name = f"worker-{self._worker}"
        while (rows := self._items.get()) is not None:
            if failure is None:
                try:
                    self._write(rows, name, part)
                    part += 1
                except Exception as error:  # close() raises it. Until then the queue must be emptied.
                    failure = error
        if failure is None:
            write_progress(self._folder, Progress(name, part, self._rolled_us, closed=True))
        self._ended.put(failure)

    def _write(self, rows: list[Row], name: str, part: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for kind, table in LOAD_TABLES.items():
            own: list[tuple[Any, ...]] = [row.values() for row in rows if type(row) is kind]
            if not own:
                continue
            path = part_of(self._folder, table, name, part)
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays = dict(
                zip((column.name for column in table.columns), map(list, zip(*own, strict=True)), strict=True)
            )
            pq.write_table(pa.table(arrays, schema=arrow_schema(table)), path, compression="zstd")
