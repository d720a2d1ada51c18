"""Write a generated history as a run's folder, piece by piece, so that its memory does not grow with its length."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reports.columns import Table
from reports.job_rows import Row
from reports.manifest import Manifest, write_manifest
from reports.rows import END_OF_RUN_US
from reports.scale.load import (
    BETWEEN_APPENDS_US,
    FETCHERS,
    FIRST_INDEX,
    LOAD_STARTS_US,
    PARTITIONS,
    PER_APPEND,
    PRODUCERS,
    Fetches,
    Numbers,
    Piece,
    fetches,
    pieces,
)
from reports.scale.violations import NOTHING, Planted
from reports.schema import TABLES, arrow_schema, stored_files

TOPIC = "hot"
FOREIGN_TOPIC = "never-requested"
_PRODUCERS = [f"producer-{number}" for number in range(PRODUCERS)]
_FETCHERS = [f"fetcher-{number}" for number in range(FETCHERS)]
_NAMES = pa.array([*_PRODUCERS, *_FETCHERS, "final-reader"])
_FIRST_FETCHER, _FINAL = PRODUCERS, PRODUCERS + FETCHERS
_ROWS_OF_A_GROUP = 50_000
_RUNS_OF_A_FINAL_READ = 100
_BUCKET_US = 16
_TABLES: Mapping[str, Table] = {table.name: table for table in TABLES}


@dataclass(slots=True)
class Written:
    """The content of a generated history."""

    operations: int = 0
    records_sent: int = 0
    records_read: int = 0
    rows: Counter[str] = field(default_factory=Counter)


class Writer:
    """Appends columns to the tables of one run. A column that is not given has the default of its row."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._open: dict[str, pq.ParquetWriter] = {}
        self.written = Written()

    def add(self, name: str, columns: Mapping[str, Any]) -> None:
        table, schema = _TABLES[name], arrow_schema(_TABLES[name])
        rows = next(len(column) for column in columns.values() if not isinstance(column, str | int))
        values = {**_DEFAULTS, **columns}
        arrays = [_column(values[column.name], rows, schema.field(column.name).type) for column in table.columns]
        if name not in self._open:
            path = self._run_dir / table.path.replace("*", "-scale" if "/*" not in table.path else "scale")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open[name] = pq.ParquetWriter(path, schema, compression="zstd")
        self._open[name].write_table(pa.table(arrays, schema=schema), row_group_size=_ROWS_OF_A_GROUP)
        self.written.rows[name] += rows

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()


_DEFAULTS = {
    "type": "ok",
    "node": 0,
    "error": None,
    "session_id": 0,
    "session_epoch": -1,
    "response_session_id": -1,
    "partitions_sent": 0,
    "partitions_returned": 1,
    "request_bytes": 80,
    "response_bytes": 0,
    "topic": TOPIC,
    "isolation": 0,
    "valid": True,
    "log_start_offset": 0,
    "last_stable_offset": -1,
    "leader_epoch": -1,
    "tombstone_horizon": -1,
    "size_bytes": 0,
    "retention_ms": None,
    "retention_bytes": None,
    "segment_bytes": None,
    "worker": "scale",
    "failed": 0,
    "max_slip_us": 0,
    "cpu_permille": 0,
    "wanted_permille": 0,
    "lag_us": 0,
}


def _column(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.cast(kind)
    if isinstance(value, np.ndarray | list):
        return pa.array(value, kind)
    return pa.repeat(pa.scalar(value, kind), rows) if value is not None else pa.nulls(rows, kind)


def _names(of: Numbers) -> pa.Array:
    return _NAMES.take(pa.array(of))


def write_history(run_dir: Path, operations: int, seed: int = 1, violations: Planted = NOTHING) -> Written:
    """Write a run of about ``operations`` operations of clients, and its manifest. Return what it has."""
    appends = appends_for(operations)
    writer = Writer(run_dir)
    clients = [_Fetcher(number) for number in range(FETCHERS)]
    _begin(writer)
    for piece in pieces(appends, seed, violations.again()):
        _write_piece(writer, piece, clients, seed, violations)
    end_us = LOAD_STARTS_US + (appends + 1_000) * BETWEEN_APPENDS_US
    end_us = _read_all(writer, appends, seed, violations, piece.next_offset, end_us)
    _write_ends(writer, piece.next_offset, end_us)
    writer.close()
    planted = " --plant" if violations.places else ""
    write_manifest(
        run_dir,
        Manifest(
            scenario="generated-history",
            title="A generated history",
            seed=seed,
            world="live",
            target="a generator",
            duration_us=end_us,
            history_files=stored_files(run_dir),
            repeat_command=f"python -m reports.scale generate {operations} --seed {seed}{planted} --out RUN_DIR",
        ),
    )
    return writer.written


def appends_for(operations: int) -> int:
    return max(PARTITIONS * PRODUCERS, round(operations / PER_APPEND))


@dataclass(slots=True)
class _Fetcher:
    """The positions of one fetcher between two pieces."""

    number: int
    index: int = FIRST_INDEX
    last_us: int = LOAD_STARTS_US
    positions: Numbers = field(default_factory=lambda: np.zeros(PARTITIONS, np.int64))


def _begin(writer: Writer) -> None:
    """Write the operations of each client before the load: three operations, and each fetcher takes all partitions."""
    clients = np.repeat(np.arange(len(_NAMES)), FIRST_INDEX)
    index = np.tile(np.arange(FIRST_INDEX), len(_NAMES))
    at_us = 500_000 + index * 10_000 + clients * 100
    f = pa.array(["connect", "metadata", "list_offsets"]).take(pa.array(index))
    _add_operations(writer, clients, index, f, at_us, at_us + 900, partitions_returned=-1)
    number = np.arange(FETCHERS * PARTITIONS)
    writer.add(
        "assignments",
        {
            "process": _names(_FIRST_FETCHER + number // PARTITIONS),
            "partition": number % PARTITIONS,
            "from_us": LOAD_STARTS_US - 1_000_000,
            "until_us": END_OF_RUN_US,
            "from_offset": 0,
        },
    )


def _write_piece(writer: Writer, piece: Piece, clients: Sequence[_Fetcher], seed: int, violations: Planted) -> None:
    """The rows of a piece are in the order in which their operations ended."""
    parts: dict[str, list[Row]] = defaultdict(list)
    _sends(parts, piece)
    for client in clients:
        read = violations.change(fetches(piece, client.number, seed), piece, client.number)
        _fetches(parts, piece, read, client, violations)
    for name, of_clients in parts.items():
        columns = {
            column: np.concatenate([piece_rows[column] for piece_rows in of_clients]) for column in of_clients[0]
        }
        order = np.argsort(columns["received_us"], kind="stable")
        _ADDERS[name](writer, {column: values[order] for column, values in columns.items()})


def _sends(parts: dict[str, list[Row]], piece: Piece) -> None:
    own = piece.acked
    n = int(own.sum())
    parts["operations"].append(
        {
            "client": piece.writer[own],
            "index": piece.index[own],
            "f": np.full(n, _PRODUCE),
            "sent_us": piece.sent_us[own],
            "received_us": piece.received_us[own],
            "returned": np.ones(n, np.int64),
            "bytes": np.full(n, 60),
        }
    )
    parts["runs"].append(
        {
            "client": piece.writer[own],
            "index": piece.index[own],
            "position": np.zeros(n, np.int64),
            "received_us": piece.received_us[own],
            "is_read": np.zeros(n, np.bool_),
            "valid": np.ones(n, np.bool_),
            **{field: getattr(piece, field)[own] for field in ("partition", "offset", "count", "writer", "sequence")},
        }
    )


def _fetches(parts: dict[str, list[Row]], piece: Piece, read: Fetches, client: _Fetcher, violations: Planted) -> None:
    starts = np.flatnonzero(read.begins)
    fetch = np.cumsum(read.begins) - 1
    ends = np.append(starts[1:], len(fetch)) - 1
    received_us = read.at_us[ends]
    process = _FIRST_FETCHER + client.number
    count = piece.count[read.events]
    parts["operations"].append(
        {
            "client": np.full(len(starts), process),
            "index": client.index + np.arange(len(starts)),
            "f": np.full(len(starts), _FETCH),
            "sent_us": np.append(client.last_us, received_us[:-1]),
            "received_us": received_us,
            "returned": ends - starts + 1,
            "bytes": np.add.reduceat(count, starts) * 100 + 60,
        }
    )
    sequence, valid = piece.sequence[read.events].copy(), np.ones(len(fetch), np.bool_)
    other = violations.of("inconsistent-offsets", piece.number, client.number)
    if other is not None:
        sequence[read.events == other] += 1 << 40
    damaged = violations.of("corrupt-value", piece.number, client.number)
    if damaged is not None:
        valid[read.events == damaged] = False
    of_event = {
        "client": np.full(len(fetch), process),
        "index": client.index + fetch,
        "received_us": received_us[fetch],
        "partition": piece.partition[read.events],
        "offset": piece.offset[read.events],
    }
    parts["runs"].append(
        {
            **of_event,
            "position": np.arange(len(fetch)) - starts[fetch],
            "is_read": np.ones(len(fetch), np.bool_),
            "valid": valid,
            "count": count,
            "writer": piece.writer[read.events],
            "sequence": sequence,
        }
    )
    after = of_event["offset"] + count
    before = _positions_before(of_event["partition"], after, client.positions)
    foreign = np.zeros(len(fetch), np.bool_)
    moves = {**of_event, "before": before, "after": after, "is_foreign": foreign}
    parts["positions"].append(moves)
    unrequested = violations.of("unrequested-partition", piece.number, client.number)
    if unrequested is not None:
        (where,) = np.flatnonzero(read.events == unrequested)
        row = {column: values[where : where + 1] for column, values in moves.items()}
        parts["positions"].append({**row, "is_foreign": np.ones(1, np.bool_)})
    client.index += len(starts)
    client.last_us = int(received_us[-1])


def _positions_before(partition: Numbers, after: Numbers, state: Numbers) -> Numbers:
    """The position of the fetcher in each partition before each response. ``state`` moves on."""
    before = np.empty(len(after), np.int64)
    for number in range(PARTITIONS):
        mine = np.flatnonzero(partition == number)
        if len(mine):
            before[mine] = np.append(state[number], after[mine][:-1])
            state[number] = after[mine][-1]
    return before


_PRODUCE, _FETCH = 0, 1
_F = pa.array(["produce", "fetch"])


def _add_piece_operations(writer: Writer, rows: Mapping[str, Any]) -> None:
    f = _F.take(pa.array(rows["f"]))
    is_fetch = rows["f"] == _FETCH
    epoch = np.where(is_fetch, rows["index"] - FIRST_INDEX + 1, -1)
    session = np.where(is_fetch, 1_000 + rows["client"], 0)
    _add_operations(
        writer,
        rows["client"],
        rows["index"],
        f,
        rows["sent_us"],
        rows["received_us"],
        partitions_returned=rows["returned"],
        response_bytes=rows["bytes"],
        session_id=session,
        session_epoch=epoch,
        response_session_id=np.where(is_fetch, session, -1),
    )
    _add_load(writer, rows["sent_us"], rows["received_us"])
    for number, name in enumerate(_F.to_pylist()):
        mine = rows["f"] == number
        _add_latency(writer, name, rows["sent_us"][mine], rows["received_us"][mine])


def _add_runs(writer: Writer, rows: Mapping[str, Any]) -> None:
    writer.add(
        "runs",
        {
            "process": _names(rows["client"]),
            "index": rows["index"],
            "position": rows["position"],
            "kind": pa.array(["send", "read"]).take(pa.array(rows["is_read"].astype(np.int64))),
            "partition": rows["partition"],
            "first_offset": rows["offset"],
            "count": rows["count"],
            "producer_id": rows["writer"],
            "writer": _names(rows["writer"]),
            "first_sequence": rows["sequence"],
            "valid": rows["valid"],
            "acks": np.where(rows["is_read"], 0, -1),
        },
    )
    read = int(rows["count"][rows["is_read"]].sum())
    writer.written.records_read += read
    writer.written.records_sent += int(rows["count"].sum()) - read


def _add_positions(writer: Writer, rows: Mapping[str, Any]) -> None:
    writer.add(
        "positions",
        {
            "process": _names(rows["client"]),
            "index": rows["index"],
            "topic": pa.array([TOPIC, FOREIGN_TOPIC]).take(pa.array(rows["is_foreign"].astype(np.int64))),
            "partition": rows["partition"],
            "fetch_offset": rows["before"],
            "next_offset": rows["after"],
            "high_watermark": rows["after"],
        },
    )


_ADDERS = {"operations": _add_piece_operations, "runs": _add_runs, "positions": _add_positions}


def _add_operations(
    writer: Writer, client: Numbers, index: Numbers, f: Any, sent_us: Numbers, received_us: Numbers, **others: Any
) -> None:
    columns = {"process": _names(client), "index": index, "f": f, "intended_us": sent_us, "invoke_us": sent_us}
    writer.add("operations", {**columns, "complete_us": received_us, **others})
    writer.written.operations += len(index)


def _add_load(writer: Writer, sent_us: Numbers, received_us: Numbers) -> None:
    first = int(min(sent_us.min(), received_us.min())) // 1_000_000
    sent = np.bincount(sent_us // 1_000_000 - first)
    completed = np.bincount(received_us // 1_000_000 - first, minlength=len(sent))
    sent = np.append(sent, np.zeros(len(completed) - len(sent), np.int64))
    seconds = first + np.arange(len(sent))
    writer.add("load", {"second": seconds, "offered": sent, "sent": sent, "completed": completed})


def _add_latency(writer: Writer, operation: str, sent_us: Numbers, received_us: Numbers) -> None:
    key = (received_us // 1_000_000 << 20) + (received_us - sent_us) // _BUCKET_US
    keys, counts = np.unique(key, return_counts=True)
    second, bucket = keys >> 20, keys & ((1 << 20) - 1)
    low_us = bucket * _BUCKET_US
    for measure in ("service", "response"):
        columns = {"operation": operation, "measure": measure, "second": second, "bucket": bucket, "low_us": low_us}
        writer.add("latency", {**columns, "high_us": low_us + _BUCKET_US, "count": counts})


def _read_all(writer: Writer, appends: int, seed: int, violations: Planted, ends: Numbers, at_us: int) -> int:
    """The final reader reads every partition once more. Returns when it was done."""
    client = _Fetcher(_FINAL)
    for piece in pieces(appends, seed, violations.again()):
        there = ~np.isin(np.arange(len(piece.writer)), violations.nobody_reads(piece.number))
        order = np.lexsort((piece.offset, piece.partition))
        events = order[there[order]]
        fetch = np.arange(len(events)) // _RUNS_OF_A_FINAL_READ
        index = client.index + np.arange(fetch[-1] + 1)
        received_us = at_us + (np.arange(fetch[-1] + 1) + 1) * 20_000
        clients = np.full(len(index), _FINAL)
        _add_operations(writer, clients, index, "final_read", received_us - 15_000, received_us)
        columns = {
            field: getattr(piece, field)[events] for field in ("partition", "offset", "count", "writer", "sequence")
        }
        of_event = {"client": np.full(len(events), _FINAL), "index": index[fetch]}
        always = np.ones(len(events), np.bool_)
        position = np.arange(len(events)) % _RUNS_OF_A_FINAL_READ
        _add_runs(writer, {**of_event, "position": position, "is_read": always, "valid": always, **columns})
        _add_final_positions(writer, of_event["index"], columns, ends)
        client.index += len(index)
        at_us = int(received_us[-1])
    return at_us


def _add_final_positions(writer: Writer, index: Numbers, columns: Mapping[str, Numbers], ends: Numbers) -> None:
    """Add one row for each partition of each response, from its first record to its last."""
    change = (np.diff(index, prepend=-1) != 0) | (np.diff(columns["partition"], prepend=-1) != 0)
    starts = np.flatnonzero(change)
    lasts = np.append(starts[1:], len(index)) - 1
    partition = columns["partition"][starts]
    writer.add(
        "positions",
        {
            "process": _names(np.full(len(starts), _FINAL)),
            "index": index[starts],
            "partition": partition,
            "fetch_offset": columns["offset"][starts],
            "next_offset": columns["offset"][lasts] + columns["count"][lasts],
            "high_watermark": ends[partition],
        },
    )


def _write_ends(writer: Writer, ends: Numbers, end_us: int) -> None:
    writer.add("ends", {"partition": np.arange(PARTITIONS), "high_watermark": ends, "end_us": end_us})
