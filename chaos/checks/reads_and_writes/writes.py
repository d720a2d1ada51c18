"""Lost, duplicated, misplaced and corrupt values."""

from collections.abc import Container
from itertools import pairwise

from bench.fleet.behaviours.piped import WRITER_SUFFIX
from chaos.checks.check import Check
from chaos.checks.history import (
    History,
    TopicPartition,
    WrittenValue,
    computed_once,
    expanded,
    grouped,
    named,
    partition_of,
)
from chaos.checks.reads_and_writes.compacted_topics import excused
from chaos.checks.reads_and_writes.reads import moved_forward
from reports.rows import EndRow, OperationRow, SpanRow

CLOCKS_US = 5_000_000
"""Physical: the time by which the clock of a node, which deletes, may be ahead of that of a client, which wrote."""


def is_placed(span: SpanRow, history: History) -> bool:
    """Return whether the span says at which offsets its values are: it was read, or acknowledged for good."""
    if span.kind == "read":
        return True
    operation = history.operation_of.get((span.process, span.index))
    # Physical: a send of unknown outcome, or whose response has no offset, may not have been written.
    is_known = operation is not None and operation.type == "ok" and span.first_offset >= 0
    # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
    return is_known and span.process not in history.unguaranteed


@computed_once
def acknowledged(history: History) -> int:
    """Return the number of spans that were acknowledged for good, if acknowledged writes must survive."""
    if not history.writes_guaranteed:
        return 0
    return sum(span.kind == "send" and is_placed(span, history) for span in history.runs)


def may_be_deleted(end: EndRow, sent_us: int, history: History) -> bool:
    """Return whether retention explains that a record, sent at ``sent_us``, is below its log's start at the end.

    Kafka: retention.ms deletes nothing younger by the deleting node's clock, which faults may have stepped.
    retention.bytes leaves at least this many bytes at the leader. A later leader may have fewer: it lacks what was not
    replicated, which is taken to be a segment at most. No client of a load deletes records of others. Without known
    limits anything may be deleted: the topic compacts, or DescribeConfigs failed.
    """
    if end.retention_ms is None or end.retention_bytes is None:
        return True
    oldest_us = end.end_us - sent_us + CLOCKS_US + history.clock_steps_us
    if 0 <= end.retention_ms * 1000 <= oldest_us:
        return True
    if end.retention_bytes < 0:
        return False
    return end.segment_bytes is None or end.retention_bytes <= end.size_bytes + end.segment_bytes


@computed_once
def deleted(history: History) -> dict[TopicPartition, EndRow]:
    """Return the ends of the partitions that were read to their end and whose logs do not begin at 0."""
    return {partition_of(row): row for row in history.ends if row.error is None and row.log_start_offset > 0}


@computed_once
def never_read(history: History) -> list[tuple[SpanRow, WrittenValue]]:
    """Return the values that must be in the log and that no client read, with their offsets.

    A value must be in the log if its write was acknowledged for good. If the outcome of its send is not known, it must
    be there where other values of the batch were read, since a batch is written whole or not at all. Excluded are the
    values that retention may have deleted, those that a cleaner may have removed (X-11, ``excused``), and all values if
    acknowledged writes need not survive.
    """
    if not history.writes_guaranteed:
        return []  # Physical: the only replica lost its power, and nothing had been synced.
    unread: list[tuple[SpanRow, WrittenValue]] = []
    read: dict[tuple[TopicPartition, str, int], int] = {}
    for span in history.runs:
        operation = history.operation_of.get((span.process, span.index))
        if span.kind == "read" and operation is not None and operation.type == "ok":
            read.update(((partition_of(span), value.writer, value.sequence), value.offset) for value in expanded(span))
    for span in history.runs:
        if span.kind != "send":
            continue
        values = list(expanded(span))
        places = [read.get((partition_of(span), value.writer, value.sequence)) for value in values]
        shifts = [offset - value.offset for value, offset in zip(values, places, strict=True) if offset is not None]
        if is_placed(span, history):
            shift = 0
        elif shifts and _end_is_unknown(span, history):
            shift = min(shifts)
        else:
            continue
        end = deleted(history).get(partition_of(span))
        begins_at = (
            end.log_start_offset if end is not None and may_be_deleted(end, sent_us(span, history), history) else 0
        )
        for value, offset in zip(values, places, strict=True):
            is_missed = offset is None and value.offset + shift >= begins_at
            if is_missed and (partition_of(span), value.writer, value.sequence) not in excused(history)[0]:
                unread.append((span, value._replace(offset=value.offset + shift)))
    return unread


def sent_us(span: SpanRow, history: History) -> int:
    """Return when the span's operation began, or 0 if that is not known."""
    operation = history.operation_of.get((span.process, span.index))
    return 0 if operation is None else operation.invoke_us


def _end_is_unknown(span: SpanRow, history: History) -> bool:
    operation = history.operation_of.get((span.process, span.index))
    return operation is None or operation.type == "info"


def last_read(history: History) -> dict[TopicPartition, int]:
    """Return the greatest offset that somebody read of each partition."""
    last: dict[TopicPartition, int] = {}
    for span in history.runs:
        if span.kind == "read":
            last[partition_of(span)] = max(last.get(partition_of(span), -1), span.first_offset + span.count - 1)
    return last


class LostWrite(Check):
    """lost-write: no acknowledged value is overtaken by reads without ever being read itself, and each is there at the
    end.

    A value is missing if the partition does not exist any more, or if its log ends below the value's offset, even if
    the value was read before. Deletions and cleaners remove records at the start of a log or in its middle, never at
    its end. A value is also missing if the log begins above its offset, and retention does not explain that
    (``may_be_deleted``). This is judged only where the broker promises that acknowledged writes survive
    (``History.writes_guaranteed``).
    """

    guarantee = "lost-write"

    def end(self, history: History) -> None:
        self.evidence += acknowledged(history)
        self._beyond_the_end(history)
        self._below_the_start(history)
        last = last_read(history)
        for span, value in never_read(history):
            overtaken_by = last.get(partition_of(span), -1)
            if value.offset <= overtaken_by:
                self.violated(
                    history.ended_us(span),
                    f"{named(span, value)} was acknowledged, never read, and overtaken by reads up to {overtaken_by}",
                )

    def _beyond_the_end(self, history: History) -> None:
        ends = {partition_of(row): row for row in history.ends}
        for span in history.runs if history.writes_guaranteed else ():
            end = ends.get(partition_of(span))
            if span.kind != "send" or end is None or not is_placed(span, history):
                continue
            gone = [value for value in expanded(span) if value.offset >= end.high_watermark]
            if gone:
                why = f"does not exist any more ({end.error})" if end.error else f"ends at offset {end.high_watermark}"
                self.violated(
                    history.ended_us(span), f"{named(span, gone[0])} was acknowledged, and the partition {why}"
                )

    def _below_the_start(self, history: History) -> None:
        for span in history.runs if history.writes_guaranteed and deleted(history) else ():
            end = deleted(history).get(partition_of(span))
            if span.kind != "send" or end is None or not is_placed(span, history):
                continue
            if span.first_offset < end.log_start_offset and not may_be_deleted(end, sent_us(span, history), history):
                first = next(expanded(span))
                self.violated(
                    history.ended_us(span),
                    f"{named(span, first)} was acknowledged, and the partition begins at offset "
                    f"{end.log_start_offset}. "
                    f"retention.ms {end.retention_ms} and retention.bytes {end.retention_bytes} do not explain that",
                )


class Unseen(Check):
    """unseen: each acknowledged value of a partition that was read to its end has been read by someone."""

    guarantee = "unseen"

    def end(self, history: History) -> None:
        self.evidence += acknowledged(history)
        ended = {partition_of(row) for row in history.ends}
        for span, value in never_read(history):
            if partition_of(span) in ended:
                self.violated(history.ended_us(span), f"{named(span, value)} was acknowledged and never read")


ValueKey = tuple[TopicPartition, str, int]
"""Partition, writer and sequence of a value."""


class Duplicate(Check):
    """duplicate: no value is at two offsets of one producer ID, by what was read and by what was acknowledged.

    P-6 promises this for one producer ID only. A producer that resends under a new ID, or has none (-1), may write a
    value twice. Values that no writer of this run made are omitted, since they cannot be distinguished. P-7: a broker
    that has forgotten the ID meanwhile also accepts a resent batch (``may_be_forgotten``).
    """

    guarantee = "duplicate"

    def end(self, history: History) -> None:
        first_offsets: dict[tuple[ValueKey, int], int] = {}
        twice: dict[tuple[ValueKey, int], dict[int, int]] = {}
        placed = [run for run in history.runs if run.producer_id >= 0 and run.valid and run.writer]
        placed = [run for run in placed if is_placed(run, history)]
        for span in placed:
            self.evidence += span.kind == "read"
            for value in expanded(span):
                key = ((partition_of(span), value.writer, value.sequence), value.producer_id)
                if first_offsets.setdefault(key, value.offset) != value.offset:
                    twice[key] = {}
        if not twice:
            return
        for span in placed:
            shown_us = history.ended_us(span)
            for value in expanded(span):
                shown = twice.get(((partition_of(span), value.writer, value.sequence), value.producer_id))
                if shown is not None:
                    shown[value.offset] = min(shown.get(value.offset, shown_us), shown_us)
        sends = _sends_of({sent for sent, _ in twice}, history)
        for (sent, producer_id), shown in twice.items():
            for (offset, first_us), (next_offset, next_us) in pairwise(sorted(shown.items())):
                shown_us = max(first_us, next_us)
                if not may_be_forgotten(sends.get(sent), shown_us, history):
                    (topic, partition), writer, sequence = sent
                    self.violated(
                        shown_us,
                        f"{topic}-{partition} offset {next_offset}: {writer}/{sequence} of producer {producer_id} "
                        f"is at offset {offset} too",
                    )


def _sends_of(values: Container[ValueKey], history: History) -> dict[ValueKey, OperationRow]:
    """Return the operations that sent these values."""
    return {
        (partition_of(span), value.writer, value.sequence): operation
        for span, operation in history.with_operations(history.runs, "produce")
        for value in expanded(span)
        if span.kind == "send" and (partition_of(span), value.writer, value.sequence) in values
    }


def may_be_forgotten(send: OperationRow | None, shown_us: int, history: History) -> bool:
    """Return whether a broker may have forgotten the producer ID between two writes of a value that ``send`` sent.

    P-7: an ID without an open transaction is forgotten once the timestamp of its last record is as old as
    ``producer.id.expiration.ms``. Kafka recommends that this is not below delivery.timeout.ms, since a batch that is
    resent later is written again. The client's clock gave the timestamp when the operation began, or up to one tick
    before, and the clock of the node may have been stepped. Both writes were before the end of the operation if that is
    known, and before they were shown, at ``shown_us``.
    """
    if send is None:
        return False
    ended_us = shown_us if send.type == "info" else min(send.complete_us, shown_us)
    oldest_us = ended_us - send.invoke_us + history.clock_steps_us + history.clock_tick_us
    return oldest_us >= history.producer_expiration_us


class InconsistentOffsets(Check):
    """inconsistent-offsets: acknowledged sends and reads never show two values at one offset.

    After a power loss without a flush policy another record may be written at an offset, so this is not judged then.
    Damaged values are those of corrupt-value.
    """

    guarantee = "inconsistent-offsets"

    def end(self, history: History) -> None:
        if not history.writes_guaranteed:
            return  # Physical: the only replica lost its power, and nothing had been synced.
        first_spans: dict[tuple[TopicPartition, int], SpanRow] = {}
        for span in history.runs:
            self.evidence += span.kind == "read"
            # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
            unguaranteed = span.kind == "send" and span.process in history.unguaranteed
            if not span.valid or not span.writer or span.first_offset < 0 or unguaranteed:
                continue
            for value in expanded(span):
                other = first_spans.setdefault((partition_of(span), value.offset), span)
                sequence = other.first_sequence + value.offset - other.first_offset
                if (other.writer, sequence) != (value.writer, value.sequence):
                    self.violated(
                        max(history.ended_us(other), history.ended_us(span)),
                        f"{span.topic}-{span.partition} offset {value.offset}: {other.writer}/{sequence}, and "
                        f"{value.writer}/{value.sequence} for {span.process}",
                    )


class NonmonotonicSend(Check):
    """nonmonotonic-send: a producer's successive acknowledged sends to one partition are at rising offsets.

    This is not judged after a power loss without a flush policy, which may take back what was acknowledged.
    """

    guarantee = "nonmonotonic-send"

    def end(self, history: History) -> None:
        if not history.writes_guaranteed:
            return  # Physical: the only replica lost its power, and nothing had been synced.
        last: dict[tuple[str, TopicPartition], int] = {}
        # Physical: a response without an offset (-1, DUPLICATE_SEQUENCE_NUMBER) does not say where the batch is.
        sends = [span for span in history.runs if span.kind == "send" and span.first_offset >= 0]
        # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
        sends = [span for span in sends if span.process not in history.unguaranteed]
        sends.sort(key=lambda span: (span.process, span.index, span.position))
        for span in sends:
            self.evidence += 1
            key = (span.process, partition_of(span))
            if span.first_offset <= last.get(key, -1):
                self.violated(
                    history.ended_us(span),
                    f"{span.process}: {span.topic}-{span.partition} was written at {span.first_offset} "
                    f"after {last[key]}",
                )
            last[key] = span.first_offset + span.count - 1


class CorruptValue(Check):
    """corrupt-value: each value that is read was made by a writer of this run. A batch has a checksum."""

    guarantee = "corrupt-value"

    def end(self, history: History) -> None:
        for span in history.runs:
            if span.kind != "read":
                continue
            self.evidence += 1
            if not span.valid or not span.writer:
                partition = f"{span.topic}-{span.partition} offset {span.first_offset}"
                self.violated(history.ended_us(span), f"{partition}: {span.process} saw a damaged value")


class MirrorComplete(Check):
    """mirror-complete: all records in the source at the end are in its mirror's target too.

    The check judges partitions that were read to their end in both clusters. It omits offsets over which a reset moved
    the mirror's position forward (its reset policy is ``latest``, or records were deleted before it came to them). The
    target may have a record twice, since the guarantee is at least once; that is only counted.
    """

    guarantee = "mirror-complete"

    def end(self, history: History) -> None:
        if not history.target_runs:
            return
        copied: dict[TopicPartition, set[tuple[str, int]]] = {}
        ended: dict[TopicPartition, None] = {}
        for row in history.target_runs:
            self.evidence += row.count
            values = copied.setdefault(partition_of(row), set())
            values.update((row.writer, row.first_sequence + step) for step in range(row.count))
            if not row.count:
                ended[partition_of(row)] = None
        mirrors = {row.process.removesuffix(WRITER_SUFFIX) for row in history.copies}
        moved = grouped((row for row in moved_forward(history) if row.process in mirrors), partition_of)
        for span, operation in history.with_operations(history.runs, "final_read"):
            if partition_of(span) not in ended:
                continue  # Physical: the contents of the target beyond the last read are unknown.
            jumps = [(row.from_offset, row.to_offset) for row in moved.get(partition_of(span), ())]
            for value in expanded(span):
                if any(first <= value.offset < end for first, end in jumps):
                    continue  # Kafka: auto.offset.reset omits what is between.
                if value.writer and (value.writer, value.sequence) not in copied[partition_of(span)]:
                    self.violated(
                        operation.complete_us,
                        f"{named(span, value)} is not in the cluster that its topic was copied to",
                    )
