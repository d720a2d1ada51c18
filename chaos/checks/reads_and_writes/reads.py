"""The reads of each fetcher: records that it skipped or read twice, and its position at the end.

A read follows another without a gap if no offset that is known to have a record is between them. Seeks and new
assignments begin a new sequence of reads. X-11: a cleaner may have removed a record before the second read
(``compacted_topics.missable``).
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chaos.checks.check import Check
from chaos.checks.history import History, TopicPartition, computed_once, grouped, partition_of
from chaos.checks.reads_and_writes.compacted_topics import NEVER_US, missable_offsets
from reports.rows import END_OF_RUN_US, EndRow, OperationRow, ResetRow, SpanRow


@dataclass(frozen=True, slots=True)
class Pair:
    """Two neighbouring spans of one process in one partition."""

    before: SpanRow
    after: SpanRow
    at_us: int
    """when the second was read"""
    inside: bool
    """whether both belong to one operation"""
    skipped: int
    """number of known records between them"""
    back: bool
    """whether the second begins at or before the end of the first"""

    @property
    def explanation(self) -> str:
        last = self.before.first_offset + self.before.count - 1
        return (
            f"{self.after.process}: {self.after.topic}-{self.after.partition} after offset {last} (operation "
            f"{self.before.index}) came {self.after.first_offset} (operation {self.after.index})"
        )


@computed_once
def reads(history: History) -> list[tuple[SpanRow, OperationRow]]:
    """Return the spans read by operations that succeeded, each with its operation, by process and in the order of
    reading. A member fetches from several nodes at once, so that is the order of the responses."""
    spans = [
        (span, operation)
        for span in history.runs
        if span.kind == "read"
        and (operation := history.operation_of.get((span.process, span.index))) is not None
        and operation.type == "ok"
    ]
    spans.sort(key=lambda each: (each[0].process, each[1].complete_us, each[0].index, each[0].position))
    return spans


@computed_once
def pairs(history: History) -> list[Pair]:
    """Return all neighbouring spans of one reader in one partition, in the order of reading."""
    known = known_offsets(history)
    assigned = grouped(history.assignments, lambda row: (row.process, partition_of(row)))
    starts = {key: sorted(row.from_us for row in rows) for key, rows in assigned.items()}
    walks: dict[tuple[str, TopicPartition], tuple[SpanRow, int]] = {}
    neighbours: list[Pair] = []
    for span, operation in reads(history):
        key = (span.process, partition_of(span))
        begun = bisect_left(starts.get(key, []), operation.complete_us)
        last = walks.get(key)
        walks[key] = (span, begun)
        if last is not None and last[1] == begun:
            offsets, taken = (
                known[partition_of(span), span.isolation],
                missable_offsets(history).get(partition_of(span), {}),
            )
            neighbours.append(_pair(last[0], span, operation.complete_us, offsets, taken))
    return neighbours


def _pair(before: SpanRow, after: SpanRow, at_us: int, known: list[int], taken: Mapping[int, int]) -> Pair:
    following = before.first_offset + before.count
    between = range(bisect_left(known, following), bisect_left(known, after.first_offset))
    skipped = len(between)
    if taken:
        skipped = sum(taken.get(known[each], NEVER_US) > at_us for each in between)
    return Pair(before, after, at_us, before.index == after.index, skipped, after.first_offset < following)


@computed_once
def known_offsets(history: History) -> dict[tuple[TopicPartition, int], list[int]]:
    """Return the sorted offsets at which somebody read a record, by partition and by the reader's isolation level.

    An acknowledged record that nobody read is lost, and lost-write judges whether it may be. X-4 and X-5: readers with
    read_committed (1) get no records of aborted transactions. So for them only the reads of such readers count.
    """
    by_partition: dict[tuple[TopicPartition, int], dict[int, None]] = {}
    for span in history.runs:
        if span.kind == "read":
            offsets = dict.fromkeys(range(span.first_offset, span.first_offset + span.count))
            for level in range(span.isolation + 1):
                by_partition.setdefault((partition_of(span), level), {}).update(offsets)
    return {key: sorted(offsets) for key, offsets in by_partition.items()}


def moved_forward(history: History) -> Iterator[ResetRow]:
    """Yield the resets that moved a position forward, possibly over records."""
    return (row for row in history.resets if row.to_offset > max(row.from_offset, 0))


class PollCheck(Check):
    """Base of the checks of neighbouring reads. Reads across a reassignment are no pair."""

    def end(self, history: History) -> None:
        self.evidence += len(reads(history))
        for pair in pairs(history):
            if self.is_wrong(pair):
                self.violated(pair.at_us, pair.explanation)

    @abstractmethod
    def is_wrong(self, pair: Pair) -> bool:
        """Return whether the pair violates the guarantee."""


class PollSkip(PollCheck):
    """poll-skip: no record is omitted between two reads of one fetcher."""

    guarantee = "poll-skip"

    def is_wrong(self, pair: Pair) -> bool:
        return pair.skipped > 0 and not pair.inside


class NonmonotonicPoll(PollCheck):
    """nonmonotonic-poll: the next read of a fetcher returns no record again."""

    guarantee = "nonmonotonic-poll"

    def is_wrong(self, pair: Pair) -> bool:
        return pair.back and not pair.inside


class IntPollSkip(PollCheck):
    """int-poll-skip: one read omits no record between those that it returned."""

    guarantee = "int-poll-skip"

    def is_wrong(self, pair: Pair) -> bool:
        return pair.skipped > 0 and pair.inside


class IntNonmonotonicPoll(PollCheck):
    """int-nonmonotonic-poll: one read returns its records in the order of their offsets, and none twice."""

    guarantee = "int-nonmonotonic-poll"

    def is_wrong(self, pair: Pair) -> bool:
        return pair.back and pair.inside


class FetchGap(Check):
    """fetch-gap: once all is quiet, each fetcher's position in each of its partitions is the high watermark.

    A fetcher without a start offset and without a response is at the log's start. The position of a fetcher with
    several nodes is that of the last response (KIP-392). A partition that does not exist any more has no positions
    (lost-write).
    """

    guarantee = "fetch-gap"

    def end(self, history: History) -> None:
        ends = {partition_of(row): row for row in history.ends if row.error is None}
        lasting = [row for row in history.assignments if row.until_us == END_OF_RUN_US]
        positions = {(row.process, partition_of(row)): row.from_offset for row in lasting}
        last = {(row.process, partition_of(row)): (row.from_us, -1) for row in lasting}
        for position, operation in history.with_operations(history.positions, "fetch"):
            key, moment = (position.process, partition_of(position)), (operation.complete_us, position.index)
            if key in positions and moment >= last[key]:
                last[key] = moment
                positions[key] = position.next_offset
        for (process, partition), offset in positions.items():
            end = ends.get(partition)  # Physical: nothing is known of a partition that could not be read at the end.
            if end is None:
                continue
            self.evidence += 1
            current = offset if offset >= 0 else end.log_start_offset
            if current != end.high_watermark and not self._is_held(history, end, current):
                self.violated(
                    end.end_us,
                    f"{process} is at offset {current} of {partition[0]}-{partition[1]}, whose high watermark is "
                    f"{end.high_watermark}",
                )

    def _is_held(self, history: History, end: EndRow, position: int) -> bool:
        """Return whether committed reads end here because of a transaction that does not end: its coordinator has lost
        its state (E-7), or a fault has stepped back the wall clock by which Kafka's coordinators time it out."""
        if position != end.last_stable_offset:
            return False
        late_us = history.clock_steps_us
        return any(
            self.context.is_forgotten(producer_id)
            or any(
                late_us and row.outcome != "ok" and row.at_us + row.timeout_us + late_us >= end.end_us
                for row in history.transactions
                if producer_id in (row.producer_id, None)
            )
            for producer_id in self.context.producers.holding(partition_of(end), position)
        )


class UnrequestedPartition(Check):
    """unrequested-partition: a response has only partitions that its fetcher reads at that time.

    A forgotten partition counts as read until the forget is acknowledged.
    """

    guarantee = "unrequested-partition"

    def end(self, history: History) -> None:
        assigned = grouped(history.assignments, lambda row: (row.process, partition_of(row)))
        # Physical: only the response shows the fetcher that its forget has arrived (F-12). It has one fetch at a time
        # on its way, so what it sends in the microsecond of that response it sends after it.
        for position, operation in history.with_operations(history.positions, "fetch"):
            self.evidence += 1
            if not any(
                row.from_us <= operation.complete_us and operation.invoke_us < row.until_us
                for row in assigned.get((position.process, partition_of(position)), ())
            ):
                self.violated(
                    operation.complete_us,
                    f"{position.process} got a response about {position.topic}-{position.partition}, which it does not "
                    f"read (operation {position.index})",
                )


class ResponsesAfterHeal(Check):
    """responses-after-heal: once all faults are healed, every node responds, and each partition can be read to its end.

    A cluster that does not respond any more is a violation, not missing evidence. ``SimWorld`` reports each reader that
    came to the end, and the partitions that a reader could not finish.

    E-7: the remote segments of a partition are ``unreadable`` if their metadata may be lost, and its local log begins
    behind its log start. KIP-405: nothing else leads to the objects of a segment. Its local log can be read.
    """

    guarantee = "responses-after-heal"

    def unreadable(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield the partitions whose oldest records may be out of reach, each with the start of its local log."""
        return self.context.replicas.unreadable()

    def record_missing(self, at_us: int, missed: str) -> None:
        """Record the requests of a phase that got no response. ``missed`` describes them, or is empty."""
        self.evidence += 1
        if missed:
            self.violated(at_us, missed)
