"""Check for dependency cycles between transactions. Jepsen's Elle looks for the same (G0, G1c)."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from chaos.checks.check import Check
from chaos.checks.history import History, TopicPartition, expanded, grouped, partition_of
from chaos.checks.reads_and_writes.reads import reads
from chaos.checks.transactions.client_transactions import ClientTransaction, Fate, Value, sightings, transactions
from reports.rows import OperationRow, SpanRow

BEGUN, REQUESTED, COMMITTED, ENDED, APPENDED, TIME = "begun", "requested", "committed", "ended", "appended", "time"
WITHIN, WW, WR, PROCESS, REALTIME = "within", "ww", "wr", "process", "realtime"
LEADER_ONLY: Final = 1
"""``SpanRow.acks`` of a send that only the leader acknowledged."""
MAX_STARTS = 200
"""Number of events of a component from which a shortest circle is searched. Only the explanation depends on it."""


class Event(NamedTuple):
    """A node of the graph."""

    kind: str
    of: str
    """a process; of APPENDED events a partition"""
    number: int
    """of an operation; of APPENDED events the offset, of TIME events the time at which all begins that follows"""


@dataclass(slots=True)
class Graph:
    """Events and the edges between them."""

    after: dict[Event, dict[Event, str]] = field(default_factory=dict)
    """kind of each edge, by its events"""
    at_us: dict[Event, int] = field(default_factory=dict)
    """events whose time is recorded"""

    def add(self, before: Event, after: Event, kind: str) -> None:
        self.after.setdefault(before, {}).setdefault(after, kind)
        self.after.setdefault(after, {})

    def only(self, events: Collection[Event]) -> "Graph":
        """Return the graph of these events. ``events`` must be quick to look up."""
        after = {event: {to: kind for to, kind in self.after[event].items() if to in events} for event in events}
        return Graph(after, {event: self.at_us[event] for event in events if event in self.at_us})

    def core(self) -> "Graph":
        """Return the graph without events that have no predecessor or no successor in it."""
        return self._without_sources()._turned()._without_sources()._turned()

    def until(self, at_us: int) -> "Graph":
        """Return the graph without events that are known to be later."""
        return self.only({event: None for event in self.after if self.at_us.get(event, at_us) <= at_us})

    def _without_sources(self) -> "Graph":
        count = dict.fromkeys(self.after, 0)
        for edges in self.after.values():
            for to in edges:
                count[to] += 1
        free = [each for each, before in count.items() if not before]
        while free:
            each = free.pop()
            del count[each]
            for to in self.after[each]:
                count[to] -= 1
                if not count[to]:
                    free.append(to)
        return self if len(count) == len(self.after) else self.only(count)

    def _turned(self) -> "Graph":
        turned: dict[Event, dict[Event, str]] = {event: {} for event in self.after}
        for each, edges in self.after.items():
            for to, kind in edges.items():
                turned[to][each] = kind
        return Graph(turned, self.at_us)

    def components(self) -> list[list[Event]]:
        """Return the strongly connected components of more than one event (Tarjan, without recursion). Only TIME could
        be followed by itself, and it is not."""
        components: list[list[Event]] = []
        number: dict[Event, int] = {}
        low: dict[Event, int] = {}
        stack: dict[Event, None] = {}
        for root in self.after:
            if root in number:
                continue
            number[root] = low[root] = len(number)
            stack[root] = None
            path = [(root, iter(self.after[root]))]
            while path:
                each, successors = path[-1]
                to = next(successors, None)
                if to is None:
                    path.pop()
                    if path:
                        low[path[-1][0]] = min(low[path[-1][0]], low[each])
                    if low[each] == number[each]:
                        component = []
                        while each in stack:
                            component.append(stack.popitem()[0])
                        if len(component) > 1:
                            components.append(component)
                elif to not in number:
                    number[to] = low[to] = len(number)
                    stack[to] = None
                    path.append((to, iter(self.after[to])))
                elif to in stack:
                    low[each] = min(low[each], number[to])
        return components

    def shortest_circle(self) -> list[Event]:
        """Return a circle of as few edges as possible; going on in one log, or in time, takes none. Empty if there is
        no circle."""
        starts = [event for event in sorted(self.after) if event.kind not in (APPENDED, TIME)][:MAX_STARTS]
        circles = (self._circle_through(each) for each in starts)
        return min((circle for circle in circles if circle), key=self._edges, default=[])

    def _edges(self, circle: list[Event]) -> int:
        return sum(_cost(before, after) for before, after in pairwise(circle))

    def _circle_through(self, start: Event) -> list[Event]:
        came_from: dict[Event, Event] = {}
        cost = {start: 0}
        waiting = deque([start])
        while waiting:
            each = waiting.popleft()
            for to in self.after[each]:
                if to == start:
                    way = [start, each]
                    while way[-1] != start:
                        way.append(came_from[way[-1]])
                    return way[::-1]
                step = _cost(each, to)
                if cost[each] + step < cost.get(to, 2**31):
                    cost[to], came_from[to] = cost[each] + step, each
                    (waiting.append if step else waiting.appendleft)(to)
        return []


def _cost(before: Event, after: Event) -> int:
    return int(before.kind != after.kind)


# --- the events of a history ----------------------------------------------------------------------------------------


class DependencyCycle(Check):
    """dependency-cycle (G0 and G1c): the order of logs, reads and requests in time form no circle.

    The check builds a graph of events, in which an edge means that one event came before the other:

    - *ww*: records of one partition were appended in the order of their offsets.
    - *wr*: a record was appended before anybody had it. Its transaction took effect before a read_committed reader had
      one of its values, and before a worker requested the commit of output derived from that value.
    - Within an operation: it begins, its records are appended, its commit is requested and takes effect, it ends.
    - *process* and *realtime*: an operation that had ended before another began came first.

    X-4 isolates readers, not writers. Records of open transactions interleave as they arrive, in each partition by
    itself. So events are appends and commits, not whole transactions, and what two concurrent transactions form by the
    offsets of two partitions is no circle.

    Events without a predecessor or a successor are dropped repeatedly, in linear time. In a legal history nothing
    remains. Otherwise the remaining graph is searched for strongly connected components (Tarjan), and each of these for
    the time at which its first circle is closed and for a shortest circle.
    """

    guarantee = "dependency-cycle"

    def end(self, history: History) -> None:
        if not history.transactions or not history.writes_guaranteed:
            return  # Physical: a log that lost records is written again from there.
        self.evidence += sum(row.requested_end == "commit" for row in history.transactions)
        order = order_of(history)
        add_time(order)
        core = order.core()
        for component in core.components():
            whole = core.only(dict.fromkeys(component))
            self.violated(first_moment(whole), described(*strongest_circle(whole, history)))


def add_time(graph: Graph) -> None:
    """Order each beginning after all earlier ends. One event for each time at which an operation begins keeps the
    number of edges linear."""
    starts = sorted({at_us for each, at_us in graph.at_us.items() if each.kind != ENDED})
    timed = list(graph.at_us.items())
    moments = [Event(TIME, "", at_us) for at_us in starts]
    graph.at_us.update(zip(moments, starts, strict=True))
    for before, after in pairwise(moments):
        graph.add(before, after, REALTIME)
    for each, at_us in timed:
        if each.kind != ENDED:
            graph.add(Event(TIME, "", at_us), each, REALTIME)
        elif (following := bisect_right(starts, at_us)) < len(starts):
            graph.add(each, moments[following], REALTIME)


def strongest_circle(whole: Graph, history: History) -> tuple[Graph, list[Event]]:
    """Return a shortest circle that needs no time, else one that needs only the order of processes, else any, with the
    graph in which it is. ``whole`` is a component."""
    graph = whole.only({event: None for event in whole.after if event.kind != TIME})
    for add in (add_inputs, add_processes):
        add(graph, history)
        if circle := graph.core().shortest_circle():
            return graph, circle
    return whole, whole.shortest_circle()


def add_inputs(graph: Graph, history: History) -> None:
    """Let a worker request its commit after its inputs took effect. That they were read before is known anyway, by the
    times of the reads; so this adds no circle, but one may need no time then."""
    wrote: dict[tuple[TopicPartition, int], Event] = {}
    for transaction in transactions(history):
        committed = Event(COMMITTED, transaction.row.process, transaction.row.index)
        if committed in graph.after:
            wrote.update(((partition, value.offset), committed) for (partition, *_), value in transaction.values())
    for row in history.transforms:
        requested = Event(REQUESTED, row.process, row.index)
        for offset in range(row.source_offset, row.source_offset + row.count):
            if requested in graph.after and (partition_of(row), offset) in wrote:
                graph.add(wrote[partition_of(row), offset], requested, WR)


def add_processes(graph: Graph, _: History) -> None:
    """Let each operation come after those of its process that had ended before."""
    for events in grouped(list(graph.at_us), lambda event: event.of).values():
        following: Event | None = None
        for each in sorted(events, key=lambda event: (graph.at_us[event], event.kind != ENDED), reverse=True):
            if following is not None and graph.at_us[each] < graph.at_us[following]:
                graph.add(each, following, PROCESS)
            following = following if each.kind == ENDED else each


def first_moment(graph: Graph) -> int:
    """Return when the first circle of the graph is closed. It has one."""
    starts = sorted(at_us for each, at_us in graph.at_us.items() if each.kind != ENDED)
    return starts[bisect_left(starts, True, key=lambda at_us: bool(graph.until(at_us).core().after))]


def described(graph: Graph, circle: list[Event]) -> str:
    """Return the circle in words, with its name as Adya and Elle have it."""
    edges = [(before, after, graph.after[before][after]) for before, after in pairwise(circle)]
    kinds = {kind for *_, kind in edges}
    suffix = f"-{REALTIME}" if REALTIME in kinds else f"-{PROCESS}" if PROCESS in kinds else ""
    steps = [_words(graph, circle[0])]
    for number, (_, after, kind) in enumerate(edges, 1):
        goes_on = number < len(edges) and kind in (WW, REALTIME) and edges[number][2] == kind
        if after.kind != TIME and not goes_on:
            steps.append(f"{_words(graph, after)} ({kind})")
    return f"{'G1c' if WR in kinds else 'G0'}{suffix}: " + ", before ".join(steps)


def _words(graph: Graph, event: Event) -> str:
    if event.kind == APPENDED:
        return f"{event.of} offset {event.number} was written"
    verb = {BEGUN: "began", REQUESTED: "requested its commit", COMMITTED: "took effect", ENDED: "ended"}[event.kind]
    when = f" at {graph.at_us[event]} us" if event in graph.at_us else ""
    return f"operation {event.number} of {event.of} {verb}{when}"


def order_of(history: History) -> Graph:
    """Return the events of a history with all that orders them but time."""
    return _Order(history).graph


class _Order:
    def __init__(self, history: History) -> None:
        self.graph = Graph()
        self._history = history
        self._offsets: dict[TopicPartition, set[int]] = {}
        self._read_at: dict[Value, list[int]] = {}
        self._reads()
        sent = {(each.row.process, each.row.index) for each in transactions(history)}
        for transaction in transactions(history):
            self._transaction(transaction)
        for span in history.runs:
            if span.kind == "send" and (span.process, span.index) not in sent:
                self._plain(span)
        self._logs()

    def _appended(self, partition: TopicPartition, offset: int) -> Event:
        self._offsets.setdefault(partition, set()).add(offset)
        return Event(APPENDED, f"{partition[0]}-{partition[1]}", offset)

    def _timed(self, kind: str, process: str, number: int, at_us: int) -> Event:
        event = Event(kind, process, number)
        self.graph.at_us[event] = at_us
        return event

    def _ended(self, operation: OperationRow) -> Event:
        return self._timed(ENDED, operation.process, operation.index, operation.complete_us)

    def _reads(self) -> None:
        """Return the reads to compare. Of those that read up to the same offset the first is enough."""
        first: dict[tuple[TopicPartition, int], OperationRow] = {}
        for span, operation in reads(self._history):
            if span.valid and span.writer:
                key = partition_of(span), span.first_offset + span.count - 1
                if key not in first or operation.complete_us < first[key].complete_us:
                    first[key] = operation
        for (partition, offset), operation in first.items():
            self.graph.add(self._appended(partition, offset), self._ended(operation), WR)

    def _transaction(self, transaction: ClientTransaction) -> None:
        row = transaction.row
        seen = sightings(self._history)
        first = min(
            (seen[key][0] for key, _ in transaction.values() if key in seen), key=lambda each: each.at_us, default=None
        )
        is_done = transaction.fate is Fate.COMMITTED
        # the outcome of an EndTxn without a response is unknown until somebody reads a record that it committed.
        if transaction.fate is Fate.NEVER or not (is_done or first is not None):
            return
        begun = self._timed(BEGUN, row.process, row.index, row.from_us)
        committed = Event(COMMITTED, row.process, row.index)
        self.graph.add(self._timed(REQUESTED, row.process, row.index, row.at_us), committed, WITHIN)
        if is_done:
            self.graph.add(committed, self._timed(ENDED, row.process, row.index, row.until_us), WITHIN)
        for span in transaction.sent:
            for first_offset, last_offset in self._placed(span, is_known=span.first_offset >= 0):
                self.graph.add(begun, self._appended(partition_of(span), first_offset), WITHIN)
                if span.first_offset >= 0:
                    self.graph.add(self._appended(partition_of(span), last_offset), committed, WITHIN)
        for key, _ in transaction.values():
            for sighting in seen.get(key, ())[:1]:
                ended = self._timed(ENDED, sighting.process, sighting.index, sighting.at_us)
                self.graph.add(committed, ended, WR)

    def _plain(self, span: SpanRow) -> None:
        operation = self._history.operation_of.get((span.process, span.index))
        if operation is None or operation.type == "fail" or operation.invoke_us < 0:
            return  # Physical: its beginning is unknown, or it was never written.
        # E-7 is about acks=all. What only the leader acknowledged may be truncated.
        is_known = operation.type == "ok" and span.first_offset >= 0 and span.acks != LEADER_ONLY
        begun = self._timed(BEGUN, span.process, span.index, operation.invoke_us)
        for first_offset, last_offset in self._placed(span, is_known=is_known):
            self.graph.add(begun, self._appended(partition_of(span), first_offset), WITHIN)
            if is_known:
                self.graph.add(self._appended(partition_of(span), last_offset), self._ended(operation), WITHIN)

    def _placed(self, span: SpanRow, *, is_known: bool) -> Iterator[tuple[int, int]]:
        """Yield the first and the last offset of each range that has values of the span: as acknowledged or, if no
        response had offsets, as they were read."""
        if is_known:
            yield span.first_offset, span.first_offset + span.count - 1
            return
        for each in expanded(span):
            for offset in self._where_read().get((partition_of(span), each.writer, each.sequence), ()):
                yield offset, offset

    def _where_read(self) -> dict[Value, list[int]]:
        if not self._read_at:
            for span, _ in reads(self._history):
                if span.valid and span.writer:
                    for each in expanded(span):
                        self._read_at.setdefault((partition_of(span), each.writer, each.sequence), []).append(
                            each.offset
                        )
        return self._read_at

    def _logs(self) -> None:
        for partition, offsets in self._offsets.items():
            for offset, next_offset in pairwise(sorted(offsets)):
                self.graph.add(self._appended(partition, offset), self._appended(partition, next_offset), WW)
