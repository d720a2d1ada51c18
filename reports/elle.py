"""A history for Elle, Jepsen's checker.

A partition is a list, and a record is an element that was appended to it. A read returns the list up to the last
received record. Elle has no positions, so the order of a list is that of the offsets, whatever a reader skipped
(poll-skip and similar guarantees judge that). In runs with transactions only records of read_committed readers count.

Each record of a transaction is an operation of its own. Kafka isolates readers and not writers: records of open
transactions interleave in each partition in the order of arrival, so with ``whole`` transactions Elle finds G0 and G1c
in correct runs. A worker's transaction also reads the lists of its inputs up to the last input.

Elle's processes run one operation at a time, and end with an operation of unknown outcome. So a client with concurrent
requests to several nodes is several processes, and continues as a new process after an unknown outcome.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Final, TextIO, TypeAlias

import pyarrow.parquet as pq

from reports.columns import ROW_TABLES
from reports.errors import SetupError
from reports.job_rows import Row, Rows
from reports.rows import HistoryRow, OperationRow, SpanRow, TransactionRow, TransformRow
from reports.schema import files_of

MAX_ELEMENTS: Final = 4_000_000
"""Bounds the file to some 30 MB. A read holds its whole list, so of more only each n-th read is exported."""

Key: TypeAlias = tuple[str, int]
Value: TypeAlias = tuple[Key, str, int]
"""The partition, the writer, and its number of the value."""


@dataclass(slots=True)
class Operation:
    """One operation for Elle."""

    process: str
    begun_us: int
    ended_us: int
    end: str
    appends: list[tuple[int, int]] = field(default_factory=list)
    """(list, element)"""
    reads: dict[int, int] = field(default_factory=dict)
    """Length of each list that it read."""


@dataclass(slots=True)
class Export:
    """A history for Elle: lists, and the operations on them."""

    keys: list[Key]
    """The partition of each list."""
    lists: list[list[int]]
    """The elements of each list in the order of the log."""
    operations: list[Operation]

    def write(self, to: TextIO) -> int:
        """Write one map a line, the invocations and the ends in the order of time. Return how many operations."""
        for number, (topic, partition) in enumerate(self.keys):
            to.write(f";; list {number} is {topic}-{partition}\n")
        for index, (at_us, end, process, operation) in enumerate(self._events()):
            done = end == "ok"
            parts = [
                f"[:r {key} {self._read(key, length) if done else 'nil'}]" for key, length in operation.reads.items()
            ]
            parts += [f"[:append {key} {element}]" for key, element in operation.appends]
            to.write(
                f"{{:index {index}, :type :{end}, :process {process}, :f :txn, :time {at_us * 1000}, "
                f":value [{' '.join(parts)}]}}\n"
            )
        return len(self.operations)

    def _read(self, key: int, length: int) -> str:
        return f"[{' '.join(map(str, self.lists[key][:length]))}]"

    def _events(self) -> list[tuple[int, str, int, Operation]]:
        """Return the events in order. One that begins at the moment at which another ends is concurrent with it, so it
        comes first."""
        events = []
        for process, operation in _with_processes(self.operations):
            events.append((operation.begun_us, 0, "invoke", process, operation))
            events.append((operation.ended_us, 1, operation.end, process, operation))
        events.sort(key=lambda event: (event[0], event[1], event[3]))
        return [(at_us, end, process, operation) for at_us, _, end, process, operation in events]


def _with_processes(operations: Sequence[Operation]) -> Iterator[tuple[int, Operation]]:
    """Yield the operations, each with the number of a process that is free by then."""
    numbers = count()
    free: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for operation in sorted(operations, key=lambda operation: (operation.begun_us, operation.ended_us)):
        waiting = free[operation.process]
        number = heappop(waiting)[1] if waiting and waiting[0][0] < operation.begun_us else next(numbers)
        if operation.end != "info":
            heappush(waiting, (operation.ended_us, number))
        yield number, operation


def exported(run_dir: Path, whole: bool = False) -> Export:
    """Read the history of a run. Raise SetupError if there is none."""
    operations = {(row["process"], row["index"]): row for row in _rows(run_dir, OperationRow)}
    if not operations:
        raise SetupError(f"{run_dir} has no history; name the folder of a run")
    runs = [row for row in _rows(run_dir, SpanRow) if row["writer"] and (row["process"], row["index"]) in operations]
    transactional = {(row["process"], row["index"]) for row in _rows(run_dir, TransactionRow)}
    sent = [row for row in runs if row["kind"] == "send"]
    read = [
        row
        for row in runs
        if row["kind"] == "read"
        and (row.get("isolation") or 0) >= bool(transactional)
        and operations[row["process"], row["index"]]["type"] == "ok"
    ]
    elements = {value: number for number, (value, _) in enumerate(pair for row in sent for pair in _values(row))}
    logs = _logs(read, elements)
    keys = sorted({*logs, *(_key(row) for row in sent)})
    inputs = [{**row, "first_offset": row["source_offset"]} for row in _rows(run_dir, TransformRow)]
    exported_operations: dict[tuple[str, int, int], Operation] = {}

    def of(row: Row, part: int = 0) -> Operation:
        key = row["process"], row["index"], part
        if key not in exported_operations:
            operation = operations[row["process"], row["index"]]
            begun_us = operation["invoke_us"] if operation["invoke_us"] >= 0 else operation["intended_us"]
            exported_operations[key] = Operation(row["process"], begun_us, operation["complete_us"], operation["type"])
        return exported_operations[key]

    for row in (
        *read,
        *(input_row for input_row in inputs if (input_row["process"], input_row["index"]) in operations),
    ):
        key, last = _key(row), row["first_offset"] + row["count"] - 1
        if length := bisect_right(logs.get(key, ()), last, key=lambda pair: pair[0]):
            of(row).reads[keys.index(key)] = max(length, of(row).reads.get(keys.index(key), 0))
    for row in sent:
        for value, _ in _values(row):
            alone = not whole and (row["process"], row["index"]) in transactional
            of(row, 1 + elements[value] if alone else 0).appends.append((keys.index(_key(row)), elements[value]))
    _thin(exported_operations.values())
    lists = [[element for _, element in logs.get(key, ())] for key in keys]
    return Export(
        keys, lists, [exported for exported in exported_operations.values() if exported.appends or exported.reads]
    )


def _logs(read: Rows, elements: Mapping[Value, int]) -> dict[Key, list[tuple[int, int]]]:
    """Return what readers found in each partition: offsets and elements, in the order of the offsets."""
    logs: dict[Key, set[tuple[int, int]]] = defaultdict(set)
    for row in read:
        logs[_key(row)].update((offset, elements[value]) for value, offset in _values(row) if value in elements)
    return {key: sorted(pairs) for key, pairs in logs.items()}


def _thin(operations: Iterable[Operation]) -> None:
    """Exclude reads, if all of them have too many elements. The longest of each list stay."""
    readers = [operation for operation in operations if operation.reads]
    total, longest = 0, dict[int, int]()
    for reader in readers:
        for key, length in reader.reads.items():
            total, longest[key] = total + length, max(length, longest.get(key, 0))
    step = -(-total // MAX_ELEMENTS)
    for number, reader in enumerate(readers):
        if step > 1 and number % step:
            reader.reads = {key: length for key, length in reader.reads.items() if length == longest[key]}


def _key(row: Row) -> Key:
    return row["topic"], row["partition"]


def _values(row: Row) -> Iterator[tuple[Value, int]]:
    """Yield the values of a run with their offsets."""
    for step in range(row["count"]):
        yield (_key(row), row["writer"], row["first_sequence"] + step), row["first_offset"] + step


def _rows(run_dir: Path, kind: type[HistoryRow]) -> list[Row]:
    table = ROW_TABLES[kind]
    return [row for name in files_of(run_dir, table) for row in pq.read_table(name).to_pylist()]
