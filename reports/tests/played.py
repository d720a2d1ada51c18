"""Valid histories, made by playing a tiny model: a log per partition, producers, fetchers, faults, a final read.

A test takes one, plants exactly one anomaly by editing rows, writes it and has it judged.
"""

import json
import math
from dataclasses import asdict, dataclass
from random import Random

from reports.rows import END_OF_RUN_US, AssignmentRow, EndRow, FaultRow, OperationRow, PositionRow, TraceRow
from reports.tests.control_plane import add_control_plane
from reports.tests.groups import add_groups
from reports.tests.history import NODE, STANDARD, TOPIC, Fault, History, Shape
from reports.tests.measured import add_histograms, add_load
from reports.tests.replicas import add_replicas


def generate(seed: int, shape: Shape = STANDARD) -> History:
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
        self.seq = 0
        self.incarnation = 0
        self.sequences: dict[tuple[str, int], int] = {}

    def play(self) -> None:
        shape = self.shape
        for number, fault in enumerate(shape.faults):
            row = FaultRow(
                fault.name,
                fault.kind,
                fault.at_us,
                fault.until_us,
                target="node-0",
                hit=1,
                client_id=fault.client_id,
                api_key=1 if fault.client_id else -1,
                detail=f"fault {number}",
            )
            self.h.tables["faults"].append(asdict(row))
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
            add_histograms(self.h)
            add_load(self.h)
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
        return next(
            (fault for fault in self.shape.faults if fault.kind == kind and fault.at_us <= at_us < fault.until_us), None
        )

    def _latency_us(self, at_us: int, kind: str) -> int:
        base = math.exp(self.random.gauss(6.4 if kind == "fetch" else 6.9, 0.45))
        if self.random.random() < 0.004:
            base *= self.random.uniform(5, 20)
        if self._active(at_us, "link_delayed"):
            base += self.random.gauss(50_000, 6_000)
        recent = any(
            fault.kind == "node_killed" and 0 <= at_us - fault.until_us < 800_000 for fault in self.shape.faults
        )
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
        row = OperationRow(process, index, f, kind, intended, invoke, complete, NODE, request_bytes=120)
        self.h.tables["operations"].append({**asdict(row), **more})
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
            self._trace("reply", complete - 5, process, 0, 0, response_session_id=self.session[process][0])
            session_id, epoch, response_session_id = 0, 0, self.session[process][0]
        else:
            session_id, epoch = self.session[process]
            response_session_id = session_id
            self._trace("request", invoke + 5, process, session_id, epoch)
            self._trace("reply", complete - 5, process, session_id, epoch, response_session_id=session_id)
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
            response_session_id=response_session_id,
            partitions_returned=len(parts),
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
        row = PositionRow(process, index, TOPIC, partition, at, until, len(self.logs[partition]), 0, None)
        self.h.tables["positions"].append(asdict(row))

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
        row = AssignmentRow(process, TOPIC, partition, from_us, END_OF_RUN_US, offset)
        self.h.tables["assignments"].append(asdict(row))

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
            self.h.tables["ends"].append(asdict(EndRow(TOPIC, partition, 0, len(log), at_us)))

    def _trace(
        self,
        what: str,
        at_us: int,
        client: str,
        session_id: int,
        epoch: int,
        response_session_id: int = 0,
        error: int = 0,
        detail: str = "",
    ) -> None:
        fetch = what in ("request", "reply")
        row = TraceRow(
            node=NODE,
            incarnation=self.incarnation,
            seq=self.seq,
            at_us=at_us,
            what=what,
            connection=int(client.split("-")[1]) if fetch else -1,
            client_id=client,
            api_key=1 if fetch else -1,
            api_version=17 if fetch else -1,
            session_id=session_id,
            session_epoch=epoch,
            response_session_id=response_session_id,
            error=error,
            detail=detail,
        )
        self.h.tables["trace"].append(asdict(row))
        self.seq += 1

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
