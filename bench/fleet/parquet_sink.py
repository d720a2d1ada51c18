"""Writes history tables as Parquet files: in parts, from one native thread that owns pyarrow.

The load generator hands over lists of rows, and the thread turns them into columns and bytes. Under gevent a
``threading.Thread`` would be a greenlet and would stop the load. So the sink is given a function that starts a thread
(``native_thread``).
"""

import _thread
from _queue import SimpleQueue
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from bench.fleet.recorder import AnyRow, columns_of
from reports.columns import Table
from reports.parts import OPEN, Progress, part_of, write_progress
from reports.schema import TABLES, arrow_schema

StartThread: TypeAlias = Callable[[Callable[[], None]], None]
_Item: TypeAlias = tuple[str, Sequence[AnyRow], int]
_END_OF_PART: Final = ""
"""Takes the place of a table's name in the queue."""

_TABLES: Final[Mapping[str, Table]] = {table.name: table for table in TABLES}


def native_thread(work: Callable[[], None]) -> None:
    """Start a thread of the operating system, even if gevent has patched ``threading``."""
    start: Callable[[Callable[[], None], tuple[()]], object] = _thread.start_new_thread
    try:
        from gevent.monkey import get_original
    except ImportError:
        pass
    else:
        start = get_original("_thread", "start_new_thread")
    start(work, ())


def file_of(run_dir: Path, table: str, writer: str) -> Path:
    """Return the first file that ``writer`` (a worker's name) adds to a table."""
    return part_of(run_dir, _TABLES[table], writer)


class ParquetSink:
    """Writes one file for each table that gets rows, and another one after each ``roll``. Neither that nor ``write``
    waits for the disk.

    :raises OSError: from ``close``, if anything could not be written.
    """

    def __init__(self, run_dir: Path, writer: str, start_thread: StartThread = native_thread) -> None:
        self._run_dir = run_dir
        self._writer = writer
        self.failure = ""
        """The reason why nothing is written any more, or empty. ``close`` raises it."""
        self._items: SimpleQueue[_Item | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        start_thread(self._work)

    def write(self, table: str, rows: Sequence[AnyRow], origin_us: int) -> None:
        self._items.put((table, rows, origin_us))

    def roll(self, until_us: int) -> None:
        self._items.put((_END_OF_PART, (), until_us))

    def close(self) -> None:
        self._items.put(None)
        failure = self._ended.get()
        if failure is not None:
            raise OSError(f"the history could not be written: {failure}") from failure

    def _work(self) -> None:
        failure: BaseException | None = None
        files = _Files(self._run_dir, self._writer)
        while (item := self._items.get()) is not None:
            if failure is None:
                try:
                    files.write(*item)
                except Exception as error:  # close() raises it. Until then the queue must be emptied.
                    failure = error
                    self.failure = f"the history could not be written: {error}"
        try:
            files.close()
        except Exception as error:
            failure = failure or error
        self._ended.put(failure)


class _Files:
    """The open files. They belong to the writer thread. Only that imports pyarrow, so start-up does not wait for it."""

    def __init__(self, run_dir: Path, writer: str) -> None:
        self._run_dir = run_dir
        self._writer = writer
        self._progress = Progress(writer, 0, 0)
        self._open: dict[str, tuple[Any, Any, Path]] = {}

    def write(self, table: str, rows: Sequence[AnyRow], origin_us: int) -> None:
        import pyarrow as pa

        if table == _END_OF_PART:
            self._end_part(origin_us)
            return
        schema, writer, _ = self._open.get(table) or self._opened(table)
        writer.write_table(pa.table(columns_of(rows, origin_us), schema=schema))

    def _opened(self, table: str) -> tuple[Any, Any, Path]:
        import pyarrow.parquet as pq

        schema = arrow_schema(_TABLES[table])
        path = part_of(self._run_dir, _TABLES[table], self._writer, self._progress.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = pq.ParquetWriter(path.with_suffix(OPEN), schema, compression="zstd")
        opened = self._open[table] = (schema, writer, path)
        return opened

    def _end_part(self, until_us: int, closed: bool = False) -> None:
        for _, writer, path in self._open.values():
            writer.close()
            path.with_suffix(OPEN).rename(path)
        self._open.clear()
        self._progress = Progress(self._writer, self._progress.parts + 1, until_us, closed)
        write_progress(self._run_dir, self._progress)

    def close(self) -> None:
        self._end_part(self._progress.until_us, closed=True)
