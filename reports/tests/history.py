"""Valid histories, made by playing a tiny model: a log per partition, producers, fetchers, faults, a final read.

A test takes one, plants exactly one anomaly by editing rows, writes it and has it judged.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from reports import schema
from reports.manifest import Expectations, Manifest, write_manifest
from reports.tests.control_plane import add_control_plane
from reports.tests.groups import add_groups
from reports.tests.replicas import add_replicas

END = 2**63 - 1
TOPIC = "orders"
NODE = 0
Row = dict[str, object]


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
    rate_per_s: int = 20  # operations per second and client
    batch: int = 5
    faults: tuple[Fault, ...] = (
        Fault("drop_answer", "response_dropped", 2_200_000, 2_200_000, "fetcher-1"),
        Fault("kill", "node_killed", 3_000_000, 3_600_000),
    )
    workers: int = 2
    histograms: bool = True


@dataclass
class History:
    shape: Shape
    seed: int
    tables: dict[str, list[Row]] = field(default_factory=lambda: {one.name: [] for one in schema.TABLES})

    def rows(self, table: str, **equal: object) -> list[Row]:
        return [row for row in self.tables[table] if all(row[key] == value for key, value in equal.items())]

    def drop(self, table: str, row: Row) -> None:
        self.tables[table] = [one for one in self.tables[table] if one is not row]

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
            },
            "expectations": Expectations(
                faults=tuple(one.name for one in self.shape.faults), min_fetches=10, min_acked=10
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


def generate(seed: int, shape: Shape = Shape()) -> History:
    history = History(shape, seed)
    _Player(history, Random(seed)).play()
    add_control_plane(history.tables)
    add_replicas(history.tables)
    add_groups(history.tables)
    return history


@dataclass
class _Record:
    writer: str
    sequence: int
    producer_id: int


class _Player:
    def __init__(self, history: History, random: Random) -> None:
        self.h = history
        self.shape = history.shape
        self.random = random
        self.logs: list[list[_Record]] = [[] for _ in range(self.shape.partitions)]
        self.index: dict[str, int] = {}
        self.position: dict[tuple[str, int], int] = {}
        self.session: dict[str, tuple[int, int]] = {}  # process -> (session ID, next epoch)
        self.told: dict[str, int] = {}
        self.seq = 0
        self.incarnation = 0
        self.sequences: dict[tuple[str, int], int] = {}

    def play(self) -> None:
        shape = self.shape
        for number, one in enumerate(shape.faults):
            row = {
                "name": one.name,
                "kind": one.kind,
                "at_us": one.at_us,
                "until_us": one.until_us,
                "target": "node-0",
                "hit": 1,
                "client_id": one.client_id,
                "api_key": 1 if one.client_id else -1,
                "session_id": 0,
                "session_epoch": -1,
                "detail": f"fault {number}",
            }
            self.h.tables["faults"].append(row)
        for fetcher in range(shape.fetchers):
            for partition in self._owned(fetcher):
                self._assign(f"fetcher-{fetcher}", partition, 0, 0)
        for intended_us, kind, number in self._schedule():
            self._operation(intended_us, kind, number)
        end_us = shape.seconds * 1_000_000
        for fetcher in range(shape.fetchers):
            self._catch_up(f"fetcher-{fetcher}", fetcher, end_us + fetcher)
        self._final_read(end_us + 500_000)
        if shape.histograms:
            self._histograms()
            self._load()
        self._broker()

    def _owned(self, fetcher: int) -> list[int]:
        return [p for p in range(self.shape.partitions) if p % self.shape.fetchers == fetcher or fetcher == 0]

    def _schedule(self) -> list[tuple[int, str, int]]:
        gap = 1_000_000 // self.shape.rate_per_s
        slots = []
        for kind, clients in (("produce", self.shape.producers), ("fetch", self.shape.fetchers)):
            for number in range(clients):
                first = self.random.randrange(gap)
                slots += [(at, kind, number) for at in range(first, self.shape.seconds * 1_000_000, gap)]
        return sorted(slots)

    def _active(self, at_us: int, kind: str) -> Fault | None:
        return next((one for one in self.shape.faults if one.kind == kind and one.at_us <= at_us < one.until_us), None)

    def _latency_us(self, at_us: int, kind: str) -> int:
        base = math.exp(self.random.gauss(6.4 if kind == "fetch" else 6.9, 0.45))
        if self.random.random() < 0.004:
            base *= self.random.uniform(5, 20)
        if self._active(at_us, "link_delayed"):
            base += self.random.gauss(50_000, 6_000)
        recent = any(one.kind == "node_killed" and 0 <= at_us - one.until_us < 800_000 for one in self.shape.faults)
        return max(80, int(base * (6 if recent else 1)))

    def _operation(self, intended_us: int, kind: str, number: int) -> None:
        process = f"{'fetcher' if kind == 'fetch' else 'producer'}-{number}"
        invoke_us = intended_us + self.random.randrange(20, 300)
        down = self._active(invoke_us, "node_killed")
        latency = 20_000 + self.random.randrange(9_000) if down else self._latency_us(invoke_us, kind)
        complete_us = invoke_us + min(latency, 1_000_000 // self.shape.rate_per_s - 400)
        if down and self.incarnation == 0:
            self._restart()
        if down:
            self._end(
                process,
                kind,
                "info" if kind == "produce" else "fail",
                intended_us,
                invoke_us,
                complete_us,
                error="disconnected",
            )
        elif kind == "produce":
            self._produce(process, number, intended_us, invoke_us, complete_us)
        else:
            self._fetch(process, number, intended_us, invoke_us, complete_us)

    def _restart(self) -> None:
        self.incarnation += 1
        self.seq = 0
        self.session.clear()

    def _end(self, process: str, f: str, kind: str, intended: int, invoke: int, complete: int, **more: object) -> int:
        index = self.index.get(process, -1) + 1
        self.index[process] = index
        row: Row = {
            "process": process,
            "index": index,
            "f": f,
            "type": kind,
            "intended_us": intended,
            "invoke_us": invoke,
            "complete_us": complete,
            "node": NODE,
            "error": None,
            "session_id": 0,
            "session_epoch": -1,
            "answered_session_id": -1,
            "partitions_sent": 0,
            "partitions_answered": -1,
            "request_bytes": 120,
            "response_bytes": 0,
        }
        self.h.tables["operations"].append({**row, **more})
        return index

    def _produce(self, process: str, number: int, intended: int, invoke: int, complete: int) -> None:
        partition = self.random.randrange(self.shape.partitions)
        log, first = self.logs[partition], self.sequences.get((process, partition), 0)
        count = self.random.randint(1, self.shape.batch)
        index = self._end(process, "produce", "ok", intended, invoke, complete, response_bytes=60)
        self._run(process, index, 0, "send", partition, len(log), count, 1000 + number, process, first)
        log += [_Record(process, first + step, 1000 + number) for step in range(count)]
        self.sequences[process, partition] = first + count

    def _fetch(self, process: str, number: int, intended: int, invoke: int, complete: int) -> None:
        if process not in self.session:
            self.session[process] = (self.random.randint(1, 2**31 - 1), 1)
            note = json.dumps(
                {"client_id": process, "partitions": 1, "privileged": 0, "session_id": self.session[process][0]},
                sort_keys=True,
            )
            self._trace("request", invoke + 5, process, 0, 0)
            self._trace("session_created", invoke + 5, "", 0, -1, detail=note)
            self._trace("reply", complete - 5, process, 0, 0, answered=self.session[process][0])
            session_id, epoch, answered = 0, 0, self.session[process][0]
        else:
            session_id, epoch = self.session[process]
            answered = session_id
            self._trace("request", invoke + 5, process, session_id, epoch)
            self._trace("reply", complete - 5, process, session_id, epoch, answered=session_id)
            self.session[process] = (session_id, epoch + 1)
        dropped = any(
            f.kind == "response_dropped" and f.client_id == process and 0 <= invoke - f.at_us < 60_000
            for f in self.shape.faults
        )
        if dropped:
            self.session.pop(process)
            self._end(
                process,
                "fetch",
                "info",
                intended,
                invoke,
                complete,
                error="timeout",
                session_id=session_id,
                session_epoch=epoch,
            )
            return
        parts = [p for p in self._owned(number) if self.position[process, p] < len(self.logs[p])]
        index = self._end(
            process,
            "fetch",
            "ok",
            intended,
            invoke,
            complete,
            session_id=session_id,
            session_epoch=epoch,
            answered_session_id=answered,
            partitions_answered=len(parts),
            response_bytes=80 + 900 * len(parts),
        )
        for partition in parts:
            self._read(process, index, partition, self.shape.batch * 3)

    def _read(self, process: str, index: int, partition: int, limit: int) -> None:
        log, at = self.logs[partition], self.position[process, partition]
        until = min(len(log), at + limit)
        self._said(process, index, partition, at, until)
        self.position[process, partition] = until
        position, start = 0, at
        while start < until:
            first, end = log[start], start + 1
            while (
                end < until
                and log[end].writer == first.writer
                and log[end].sequence == log[end - 1].sequence + 1
                and log[end].producer_id == first.producer_id
            ):
                end += 1
            self._run(
                process,
                index,
                position,
                "read",
                partition,
                start,
                end - start,
                first.producer_id,
                first.writer,
                first.sequence,
            )
            position, start = position + 1, end

    def _said(self, process: str, index: int, partition: int, at: int, until: int) -> None:
        self.h.tables["positions"].append(
            {
                "process": process,
                "index": index,
                "topic": TOPIC,
                "partition": partition,
                "fetch_offset": at,
                "next_offset": until,
                "high_watermark": len(self.logs[partition]),
                "log_start_offset": 0,
                "error": None,
            }
        )

    def _run(
        self,
        process: str,
        index: int,
        position: int,
        kind: str,
        partition: int,
        first_offset: int,
        count: int,
        producer_id: int,
        writer: str,
        first_sequence: int,
    ) -> None:
        self.h.tables["runs"].append(
            {
                "process": process,
                "index": index,
                "position": position,
                "kind": kind,
                "topic": TOPIC,
                "partition": partition,
                "first_offset": first_offset,
                "count": count,
                "producer_id": producer_id,
                "writer": writer,
                "first_sequence": first_sequence,
                "valid": True,
            }
        )

    def _assign(self, process: str, partition: int, from_us: int, offset: int) -> None:
        self.position[process, partition] = offset
        self.h.tables["assignments"].append(
            {
                "process": process,
                "topic": TOPIC,
                "partition": partition,
                "from_us": from_us,
                "until_us": END,
                "from_offset": offset,
            }
        )

    def _catch_up(self, process: str, number: int, at_us: int) -> None:
        while any(self.position[process, p] < len(self.logs[p]) for p in self._owned(number)):
            self._fetch(process, number, at_us, at_us + 30, at_us + 900)
            at_us += 2_000

    def _final_read(self, at_us: int) -> None:
        for partition, log in enumerate(self.logs):
            self.position["final", partition] = 0
            while self.position["final", partition] < len(log):
                index = self._end("final", "final_read", "ok", at_us, at_us, at_us + 1_000, response_bytes=5_000)
                self._read("final", index, partition, 200)
                at_us += 2_000
            self.h.tables["ends"].append(
                {
                    "topic": TOPIC,
                    "partition": partition,
                    "log_start_offset": 0,
                    "high_watermark": len(log),
                    "end_us": at_us,
                }
            )

    def _trace(
        self,
        what: str,
        at_us: int,
        client: str,
        session_id: int,
        epoch: int,
        answered: int = 0,
        error: int = 0,
        detail: str = "",
    ) -> None:
        fetch = what in ("request", "reply")
        self.h.tables["trace"].append(
            {
                "node": NODE,
                "incarnation": self.incarnation,
                "seq": self.seq,
                "at_us": at_us,
                "what": what,
                "connection": int(client.split("-")[1]) if fetch else -1,
                "client_id": client,
                "api_key": 1 if fetch else -1,
                "api_version": 17 if fetch else -1,
                "session_id": session_id,
                "session_epoch": epoch,
                "answered_session_id": answered,
                "error": error,
                "detail": detail,
            }
        )
        self.seq += 1

    def _histograms(self) -> None:
        counts: dict[tuple[str, str, str, int, int], int] = {}
        for row in self.h.tables["operations"]:
            worker = f"worker-{sum(map(ord, str(row['process']))) % self.shape.workers}"
            for measure, start in (("service", "invoke_us"), ("response", "intended_us")):
                value = int(row["complete_us"]) - int(row[start])  # type: ignore[call-overload]
                second = int(row["complete_us"]) // 1_000_000  # type: ignore[call-overload]
                key = (str(row["f"]), measure, worker, second, bucket_of(value))
                counts[key] = counts.get(key, 0) + 1
        for (operation, measure, worker, second, bucket), count in sorted(counts.items()):
            low, high = bounds_of(bucket)
            self.h.tables["latency"].append(
                {
                    "operation": operation,
                    "measure": measure,
                    "worker": worker,
                    "second": second,
                    "bucket": bucket,
                    "low_us": low,
                    "high_us": high,
                    "count": count,
                }
            )

    def _load(self) -> None:
        zero = {"offered": 0, "sent": 0, "completed": 0, "failed": 0, "max_slip_us": 0}
        seconds: dict[int, dict[str, int]] = {}
        for row in self.h.tables["operations"]:
            if row["f"] not in ("fetch", "produce"):
                continue
            intended, invoke, complete = (int(row[key]) for key in ("intended_us", "invoke_us", "complete_us"))  # type: ignore[call-overload]
            for at, what in (
                (intended, "offered"),
                (invoke, "sent"),
                (complete, "completed" if row["type"] == "ok" else "failed"),
            ):
                seconds.setdefault(at // 1_000_000, dict(zero))[what] += 1
            slot = seconds[invoke // 1_000_000]
            slot["max_slip_us"] = max(slot["max_slip_us"], invoke - intended)
        for second, counts in sorted(seconds.items()):
            self.h.tables["load"].append(
                {
                    "worker": "worker-0",
                    "second": second,
                    **counts,
                    "cpu_permille": 310,
                    "wanted_permille": 400,
                    "lag_us": 2_000,
                }
            )

    def _broker(self) -> None:
        for second in range(self.shape.seconds):
            down = self._active(second * 1_000_000, "node_killed")
            for metric, value in (
                ("NumIncrementalFetchSessions", self.shape.fetchers),
                ("process_cpu_permille", 240),
                ("process_rss_bytes", 88_000_000 + second * 20_000),
            ):
                if not down:
                    noise = self.random.randrange(40) if metric == "process_cpu_permille" else 0
                    self.h.tables["broker"].append(
                        {"node": NODE, "at_us": second * 1_000_000, "metric": metric, "value": value + noise}
                    )


def bucket_of(value_us: int) -> int:
    """Log-linear buckets, 128 to an octave: width below 1 %."""
    if value_us < 128:
        return max(0, value_us)
    octave = value_us.bit_length() - 8
    return octave * 128 + (value_us >> octave)


def bounds_of(bucket: int) -> tuple[int, int]:
    if bucket < 256:
        return bucket, bucket + 1
    octave = bucket // 128 - 1
    low = (bucket - octave * 128) << octave
    return low, low + (1 << octave)
