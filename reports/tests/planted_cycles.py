"""Histories with one circle each of log order, reads and time, what looks like one and is none, and drawn ones.

The jobs and the simulator's checks are tested with the same histories.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Final

from reports.rows import OperationRow, SpanRow, TransactionRow, TransformRow
from reports.tests.history import STANDARD, History

LOG, OUT = ("log", 0), ("log", 1)
COMMITTED, UNCOMMITTED = 1, 0
TIMEOUT_US: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """Values ``first`` to ``first + count - 1`` of ``writer``, from ``offset`` on, or -1 if no response had it."""

    where: tuple[str, int]
    offset: int
    writer: str
    first: int
    count: int = 1


@dataclass
class Circles:
    """Adds operations to a history. Each process counts its own, and all times are given."""

    history: History = field(default_factory=lambda: History(STANDARD, 1))
    counts: dict[str, int] = field(default_factory=dict)

    def send(self, process: str, from_us: int, until_us: int, *parts: Part, kind: str = "ok", acks: int = -1) -> None:
        index = self._operation(process, "produce", kind, from_us, until_us)
        self._runs(process, index, "send", parts, acks, UNCOMMITTED)

    def transaction(
        self,
        process: str,
        from_us: int,
        at_us: int,
        until_us: int,
        *parts: Part,
        requested_end: str = "commit",
        end: str = "ok",
    ) -> int:
        kind = {"ok": "ok", "unknown": "info"}.get(end, "fail") if requested_end == "commit" else "fail"
        index = self._operation(process, "transaction", kind, from_us, until_us)
        times = TIMEOUT_US, from_us, at_us, until_us
        self._add("transactions", TransactionRow(process, index, process, 7, 0, requested_end, end, None, *times))
        self._runs(process, index, "send", parts, -1, UNCOMMITTED)
        return index

    def read(
        self, process: str, from_us: int, until_us: int, *parts: Part, isolation: int = COMMITTED, kind: str = "ok"
    ) -> None:
        index = self._operation(process, "fetch", kind, from_us, until_us)
        self._runs(process, index, "read", parts, 0, isolation)

    def transformed(self, process: str, index: int, source: Part, target: Part) -> None:
        made = target.where[0], target.where[1], target.writer, target.first
        row = TransformRow(process, index, "workers", *source.where, source.offset, source.count, *made)
        self._add("transforms", row)

    def _operation(self, process: str, f: str, kind: str, from_us: int, until_us: int) -> int:
        index = self.counts[process] = self.counts.get(process, -1) + 1
        self._add("operations", OperationRow(process, index, f, kind, from_us, from_us, until_us))
        return index

    def _runs(self, process: str, index: int, kind: str, parts: tuple[Part, ...], acks: int, isolation: int) -> None:
        for position, part in enumerate(parts):
            of_log = *part.where, part.offset, part.count, 7, part.writer, part.first
            self._add("runs", SpanRow(process, index, position, kind, *of_log, True, acks, isolation))

    def _add(self, table: str, row: object) -> None:
        self.history.tables[table].append(asdict(row))  # type: ignore[call-overload]


def transactions_against_time(circles: Circles, begin_us: int = 110) -> None:
    """The second one begins when the first one has ended, and its record is before."""
    circles.transaction("a", 0, 50, 100, Part(LOG, 5, "a", 0))
    circles.transaction("b", begin_us, 150, 200, Part(LOG, 3, "b", 0))


def concurrent_transactions(circles: Circles, begin_us: int = 90) -> None:
    """Each is before the other in one partition."""
    circles.transaction("a", 0, 50, 100, Part(LOG, 5, "a", 0), Part(OUT, 0, "a", 1))
    circles.transaction("b", begin_us, 150, 200, Part(LOG, 3, "b", 0), Part(OUT, 2, "b", 1))


def through_an_open_transaction(circles: Circles, begin_us: int = 0) -> None:
    """The last one begins when the first one has ended. The one in between is open all the time: it wrote to one
    partition before the first did, and to the other one after the last had."""
    circles.transaction("a", 20, 50, 100, Part(OUT, 2, "a", 0))
    circles.transaction("b", 110, 150, 200, Part(LOG, 3, "b", 0))
    circles.transaction("open", begin_us, 250, 300, Part(LOG, 5, "open", 0), Part(OUT, 0, "open", 1))


def interleaved_in_one_partition(circles: Circles) -> None:
    circles.transaction("a", 0, 150, 200, Part(LOG, 0, "a", 0), Part(LOG, 4, "a", 1))
    circles.transaction("b", 10, 140, 190, Part(LOG, 2, "b", 0), Part(LOG, 6, "b", 1))


def sends_against_time(circles: Circles, begin_us: int = 20, acks: int = -1, process: str = "b") -> None:
    circles.send("a", 0, 10, Part(LOG, 5, "a", 0, 3))
    circles.send(process, begin_us, 60, Part(LOG, 2, process, 10, 3), acks=acks)
    circles.transaction("t", 0, 1, 2)


def written_before_what_was_read(circles: Circles, begin_us: int = 60, process: str = "b") -> None:
    """The end of the first send is unknown, but a reader saw what it wrote."""
    circles.send("a", 0, 900, Part(LOG, -1, "a", 0, 3), kind="info")
    circles.read("r", 40, 50, Part(LOG, 5, "a", 1), isolation=UNCOMMITTED)
    circles.send(process, begin_us, 99, Part(LOG, 4, process, 10))
    circles.transaction("t", 0, 1, 2)


def written_without_a_response(circles: Circles) -> None:
    """As sends_against_time, but only a reader shows where the second send is."""
    circles.send("a", 0, 10, Part(LOG, 5, "a", 0, 3))
    circles.send("b", 20, 900, Part(LOG, -1, "b", 0, 3), kind="info")
    circles.read("r", 40, 50, Part(LOG, 3, "b", 1))
    circles.transaction("t", 0, 1, 2)


def committed_by_another_value(circles: Circles, isolation: int = COMMITTED) -> None:
    """No response had the commit of the first one. A reader had its value of another partition, so all of it was in
    the logs by then, when the second one had not begun yet."""
    circles.transaction("a", 0, 30, 900, Part(LOG, 5, "a", 0), Part(OUT, 0, "a", 1), end="unknown")
    circles.read("r", 40, 50, Part(OUT, 0, "a", 1), isolation=isolation)
    circles.send("b", 60, 99, Part(LOG, 4, "b", 10))


def read_before_requested(circles: Circles, read_us: int = 49, isolation: int = COMMITTED) -> None:
    circles.transaction("a", 0, 50, 100, Part(LOG, 5, "a", 0))
    circles.read("r", 40, read_us, Part(LOG, 5, "a", 0), isolation=isolation)


def each_reads_the_other(circles: Circles, isolation: int = COMMITTED) -> None:
    """Two workers, each of which made what it sent of what the other one sent."""
    mine, other = Part(LOG, 0, "w1-writer", 0), Part(OUT, 0, "w2-writer", 0)
    circles.read("w2", 5, 8, mine, isolation=isolation)
    circles.read("w1", 9, 15, other, isolation=isolation)
    first = circles.transaction("w1-writer", 0, 30, 40, mine)
    second = circles.transaction("w2-writer", 1, 20, 25, other)
    circles.transformed("w1-writer", first, other, mine)
    circles.transformed("w2-writer", second, mine, other)


def ended_otherwise(circles: Circles, requested_end: str, end: str, is_read: bool = False) -> None:
    """As transactions_against_time, but the second one is not known to be committed."""
    circles.transaction("a", 0, 50, 100, Part(LOG, 5, "a", 0))
    circles.transaction("b", 110, 150, 200, Part(LOG, 3, "b", 0), requested_end=requested_end, end=end)
    if is_read:
        circles.read("r", 300, 310, Part(LOG, 3, "b", 0))


PLANTED: dict[str, tuple[Callable[[Circles], None], str, int]] = {
    "realtime": (transactions_against_time, "G0-realtime", 110),
    "at the same moment": (lambda one: transactions_against_time(one, 100), "", -1),
    "concurrent": (concurrent_transactions, "", -1),
    "concurrent no more": (lambda one: concurrent_transactions(one, 101), "G0-realtime", 101),
    "through an open one": (through_an_open_transaction, "", -1),
    "through one that opens late": (lambda one: through_an_open_transaction(one, 101), "G0-realtime", 101),
    "interleaved": (interleaved_in_one_partition, "", -1),
    "sends": (sends_against_time, "G0-realtime", 20),
    "sends of one process": (lambda one: sends_against_time(one, process="a"), "G0-process", 20),
    "concurrent sends": (lambda one: sends_against_time(one, 10), "", -1),
    "leader only": (lambda one: sends_against_time(one, acks=1), "", -1),
    "after a read": (written_before_what_was_read, "G1c-realtime", 60),
    "after a read by itself": (lambda one: written_before_what_was_read(one, process="r"), "G1c-process", 60),
    "during a read": (lambda one: written_before_what_was_read(one, 50), "", -1),
    "without a response": (written_without_a_response, "G0-realtime", 20),
    "after another value": (committed_by_another_value, "G1c-realtime", 60),
    "after another value uncommitted": (lambda one: committed_by_another_value(one, UNCOMMITTED), "", -1),
    "read before requested": (read_before_requested, "G1c-realtime", 50),
    "read when requested": (lambda one: read_before_requested(one, 50), "", -1),
    "read uncommitted": (lambda one: read_before_requested(one, 49, UNCOMMITTED), "", -1),
    "read before it was sent": (lambda one: sends_read_too_early(one), "G1c-realtime", 20),
    "both ways": (each_reads_the_other, "G1c", 20),
    "both ways uncommitted": (lambda one: each_reads_the_other(one, UNCOMMITTED), "", -1),
    "aborted": (lambda one: ended_otherwise(one, "abort", "ok"), "", -1),
    "aborted and read": (lambda one: ended_otherwise(one, "abort", "ok", True), "", -1),
    "unknown": (lambda one: ended_otherwise(one, "commit", "unknown"), "", -1),
    "unknown and read": (lambda one: ended_otherwise(one, "commit", "unknown", True), "G0-realtime", 110),
    "refused": (lambda one: ended_otherwise(one, "commit", "failed"), "", -1),
}
"""Each with the circle's name for the check, and the moment at which it is closed; no name and -1 if it is legal.
An aborted transaction that was read is G1a, which aborted-read judges."""


def sends_read_too_early(circles: Circles) -> None:
    circles.read("r", 5, 10, Part(LOG, 5, "a", 0), isolation=UNCOMMITTED)
    circles.send("a", 20, 30, Part(LOG, 5, "a", 0))
    circles.transaction("t", 0, 1, 2)


def planted(name: str) -> History:
    circles = Circles()
    PLANTED[name][0](circles)
    return circles.history


# --- drawn histories ------------------------------------------------------------------------------------------------


def drawn(random: Random, operations: int = 7) -> History:
    """A history of any nonsense: offsets, times and outcomes are drawn, and about half have circles."""
    circles = Circles()
    circles.transaction("t", 0, 0, 0)
    sent: list[Part] = []
    for number in range(operations):
        begin_us, length_us = random.randrange(40), random.randrange(20)
        process = f"p{random.randrange(3)}"
        parts = [_drawn_part(random, process, 10 * number + 3 * step) for step in range(random.randrange(1, 3))]
        kind = random.choice(("send", "transaction", "transaction", "read", "read"))
        if kind == "read" and sent:
            found = [random.choice(sent) for _ in range(random.randrange(1, 3))]
            found = [_where_read(random, each) for each in found]
            circles.read(process, begin_us, begin_us + length_us, *found, isolation=random.randrange(2))
        elif kind == "send":
            end = random.choice(("ok", "ok", "info", "fail"))
            circles.send(process, begin_us, begin_us + length_us, *parts, kind=end, acks=random.choice((-1, -1, 1)))
            sent += parts
        else:
            at_us = begin_us + random.randrange(length_us + 1)
            requested_end, end = random.choice(
                (("commit", "ok"), ("commit", "ok"), ("commit", "unknown"), ("abort", "ok"))
            )
            circles.transaction(
                process, begin_us, at_us, begin_us + length_us, *parts, requested_end=requested_end, end=end
            )
            sent += parts
    return circles.history


def _drawn_part(random: Random, process: str, first: int) -> Part:
    offset = random.choice((-1, random.randrange(30), random.randrange(30)))
    return Part(random.choice((LOG, OUT)), offset, process, first, random.randrange(1, 4))


def _where_read(random: Random, part: Part) -> Part:
    skipped = random.randrange(part.count)
    offset = random.randrange(30) if part.offset < 0 else part.offset + random.choice((0, 0, 0, 1))
    return Part(part.where, offset + skipped, part.writer, part.first + skipped, part.count - skipped)


def serial(random: Random, steps: int = 60) -> History:
    """Return what clients record of a broker that does one thing after the other. Transactions interleave, requests
    take effect at any time until their response, and some responses are lost."""
    return _Serial(random).play(steps)


@dataclass
class _Open:
    """A transaction or a send on its way. ``is_acked``: its producer gets the response to its end."""

    process: str
    from_us: int
    is_transaction: bool
    is_acked: bool
    parts: list[Part] = field(default_factory=list)
    at_us: int = -1


class _Serial:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.circles = Circles()
        self.now_us = 0
        self.logs: dict[tuple[str, int], list[tuple[Part, _Open]]] = {LOG: [], OUT: []}
        self.ends: dict[tuple[str, int], int] = {LOG: 0, OUT: 0}
        self.open: dict[str, _Open] = {}
        self.sequences: dict[str, int] = {}
        self.decided: set[int] = set()

    def play(self, steps: int) -> History:
        for _ in range(steps):
            self.now_us += self.random.randrange(3)
            process = f"p{self.random.randrange(3)}"
            step = self.random.choice((self._write, self._write, self._write, self._end, self._read))
            step(process)
        for process in list(self.open):
            self._end(process)
        return self.circles.history

    def _write(self, process: str) -> None:
        current = self.open.get(process)
        if current is None:
            is_transaction, is_acked = bool(self.random.randrange(3)), bool(self.random.randrange(4))
            current = self.open[process] = _Open(process, self.now_us, is_transaction, is_acked)
            self.now_us += self.random.randrange(3)
        elif not current.is_transaction:
            return
        where, count = self.random.choice((LOG, OUT)), self.random.randrange(1, 4)
        first = self.sequences.get(process, 0)
        self.sequences[process] = first + count
        part = Part(where, self.ends[where], process, first, count)
        self.ends[where] += count + self.random.randrange(2)
        self.logs[where].append((part, current))
        current.parts.append(part)

    def _end(self, process: str) -> None:
        current = self.open.pop(process, None)
        if current is None:
            return
        at_us = self.now_us
        self.now_us += self.random.randrange(3)
        acknowledged = [
            part if current.is_acked else Part(part.where, -1, part.writer, part.first, part.count)
            for part in current.parts
        ]
        times = current.from_us, at_us, self.now_us + self.random.randrange(3)
        if not current.is_transaction:
            self.decided.add(id(current))
            kind = "ok" if current.is_acked else "info"
            self.circles.send(process, current.from_us, times[2], *acknowledged, kind=kind)
        elif self.random.randrange(4):
            self.decided.add(id(current))
            self.circles.transaction(process, *times, *current.parts, end="ok" if current.is_acked else "unknown")
        else:
            self.circles.transaction(process, *times, *current.parts, requested_end="abort")
        self.now_us = max(self.now_us, times[2]) if self.random.randrange(2) else self.now_us

    def _read(self, process: str) -> None:
        from_us, isolation = self.now_us, self.random.randrange(2)
        self.now_us += self.random.randrange(3)
        found = []
        for where in (LOG, OUT):
            for part, writer in self.logs[where]:
                is_seen = id(writer) in self.decided or (isolation == UNCOMMITTED)
                if is_seen and self.random.randrange(2):
                    found.append(part)
        if found:
            self.circles.read(
                f"{process}-reader", from_us, self.now_us + self.random.randrange(3), *found, isolation=isolation
            )


# --- by force -------------------------------------------------------------------------------------------------------


def closed_at(history: History) -> int:
    """Return the moment at which the first circle is closed, or -1. All pairs of events are compared, value by value,
    and all ways are walked."""
    times, order = _events(history)
    starts = sorted({at_us for event, at_us in times.items() if event[0] in ("begun", "requested")})
    for moment in starts:
        known = {event for pair in order for event in pair if times.get(event, moment) <= moment}
        edges = {event: {after for before, after in order if before == event and after in known} for event in known}
        for event in known:
            if event[0] == "ended":
                edges[event] |= {
                    other for other in known if other[0] in ("begun", "requested") and times[event] < times[other]
                }
        if any(_comes_back(event, edges) for event in known):
            return moment
    return -1


Event = tuple[object, ...]


def _events(history: History) -> tuple[dict[Event, int], set[tuple[Event, Event]]]:
    operations = {(row["process"], row["index"]): row for row in history.rows("operations")}
    transactions = {(row["process"], row["index"]): row for row in history.rows("transactions")}
    seen: dict[Event, list[tuple[Event, int, int]]] = {}
    times: dict[Event, int] = {}
    order: set[tuple[Event, Event]] = set()
    for key, row in operations.items():
        times["ended", *key] = int(str(row["complete_us"]))
        times["begun", *key] = int(str(row["invoke_us"]))
    for key, row in transactions.items():
        times["begun", *key], times["requested", *key] = int(str(row["from_us"])), int(str(row["at_us"]))
        times["ended", *key] = int(str(row["until_us"]))
    for row in history.rows("runs", kind="read"):
        reader = row["process"], row["index"]
        if operations[reader]["type"] == "ok":
            for value, offset in _values(row):
                order.add((("appended", row["topic"], row["partition"], offset), ("ended", *reader)))
                seen.setdefault(value, []).append((("ended", *reader), offset, int(str(row["isolation"]))))
    sent: dict[tuple[object, object], list[dict[str, object]]] = {}
    for row in history.rows("runs", kind="send"):
        sent.setdefault((row["process"], row["index"]), []).append(row)
    for key, rows in sent.items():
        values = [(value, row, offset) for row in rows for value, offset in _values(row)]
        transaction = transactions.get(key)
        if transaction is not None:
            committed = [end for value, *_ in values for end, _, level in seen.get(value, ()) if level == COMMITTED]
            is_ok = transaction["requested_end"] == "commit" and transaction["outcome"] == "ok"
            if (
                transaction["requested_end"] != "commit"
                or transaction["outcome"] == "failed"
                or not (is_ok or committed)
            ):
                continue
            done: Event = ("committed", *key)
            order |= {(("requested", *key), done)} | {(done, end) for end in committed}
            order |= {(done, ("ended", *key))} if is_ok else set()
        elif operations[key]["type"] == "fail":
            continue
        for value, row, offset in values:
            is_acked = row["first_offset"] != -1 and (
                transaction is not None or (operations[key]["type"] == "ok" and row["acks"] != 1)
            )
            for place in [offset] if is_acked else [where for _, where, _ in seen.get(value, ())]:
                appended = ("appended", row["topic"], row["partition"], place)
                order.add((("begun", *key), appended))
                if is_acked:
                    order.add((appended, ("ended", *key) if transaction is None else ("committed", *key)))
    points = {event for pair in order for event in pair if event[0] == "appended"}
    order |= {
        (point, other)
        for point in points
        for other in points
        if point[:3] == other[:3] and int(str(point[3])) < int(str(other[3]))
    }
    return times, order


def _values(row: dict[str, object]) -> list[tuple[Event, int]]:
    first, offset = int(str(row["first_sequence"])), int(str(row["first_offset"]))
    of = row["topic"], row["partition"], row["writer"]
    return [((*of, first + step), offset + step) for step in range(int(str(row["count"])))]


def _comes_back(start: Event, edges: dict[Event, set[Event]]) -> bool:
    reached: set[Event] = set()
    waiting = list(edges[start])
    while waiting:
        event = waiting.pop()
        if event == start:
            return True
        if event not in reached:
            reached.add(event)
            waiting += edges[event]
    return False
