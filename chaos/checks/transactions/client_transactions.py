"""Transactions as clients see them: their sends, their outcome, and the records that read_committed readers got."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

from chaos.checks.check import Check
from chaos.checks.groups.committed_offsets import COMMIT, FETCHED, NEVER_US, OffsetRequest, effective_requests
from chaos.checks.history import History, TopicPartition, WrittenValue, computed_once, expanded, grouped, partition_of
from chaos.checks.reads_and_writes.compacted_topics import excused
from chaos.checks.reads_and_writes.reads import reads
from reports.rows import CommitRow, EndRow, PositionRow, SpanRow, TransactionRow, TransformRow

COMMITTED_READS = 1
"""``SpanRow.isolation`` of readers with read_committed."""

Value: TypeAlias = tuple[TopicPartition, str, int]
"""The partition of a value, its writer, and the writer's number of it. No value is sent twice."""


class Fate(Enum):
    """The outcome of a transaction, as far as clients know it."""

    COMMITTED = "committed"
    NEVER = "never committed"
    """An abort or no end was requested, or the request to commit was finally rejected."""
    UNKNOWN = "unknown"
    """A commit was requested, and its outcome is not known."""


@dataclass(frozen=True, slots=True)
class ClientTransaction:
    """One transaction of a producer."""

    row: TransactionRow
    fate: Fate
    sent: tuple[SpanRow, ...]
    """spans of values"""
    offsets: tuple[CommitRow, ...]
    """group offsets that were sent with them"""

    @property
    def named(self) -> str:
        row = self.row
        return f"transaction {row.index} of {row.process} ({row.transactional_id}, epoch {row.producer_epoch})"

    def values(self) -> list[tuple[Value, WrittenValue]]:
        return [
            ((partition_of(span), written.writer, written.sequence), written)
            for span in self.sent
            for written in expanded(span)
        ]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A value that a read_committed reader got at this offset, with the response to its operation ``index``."""

    offset: int
    at_us: int
    process: str
    index: int


@computed_once
def transactions(history: History) -> list[ClientTransaction]:
    """Return all transactions, in the order of recording."""
    sent = grouped((span for span in history.runs if span.kind == "send"), lambda span: (span.process, span.index))
    offsets = grouped(
        (row for row in history.commits if row.kind == "transaction"), lambda row: (row.process, row.index)
    )
    return [
        ClientTransaction(
            row,
            _fate(row),
            tuple(sent.get((row.process, row.index), ())),
            tuple(offsets.get((row.process, row.index), ())),
        )
        for row in history.transactions
    ]


def _fate(row: TransactionRow) -> Fate:
    if row.requested_end != "commit" or row.outcome == "failed":
        return Fate.NEVER
    return Fate.COMMITTED if row.outcome == "ok" else Fate.UNKNOWN


@computed_once
def sightings(history: History) -> dict[Value, list[Sighting]]:
    """Return the places and times at which readers with read_committed saw each value, in the order of the
    responses."""
    by_value: dict[Value, list[Sighting]] = {}
    for span, operation in sorted(reads(history), key=lambda read: read[1].complete_us):
        if span.isolation == COMMITTED_READS and span.writer:
            for written in expanded(span):
                value = (partition_of(span), written.writer, written.sequence)
                by_value.setdefault(value, []).append(
                    Sighting(written.offset, operation.complete_us, span.process, span.index)
                )
    return by_value


@computed_once
def known_until(history: History) -> dict[TopicPartition, int]:
    """Return the offset below which readers with read_committed know all of a partition: one past the last offset that
    they read, or the last stable offset of a partition that was read to its end."""
    until: dict[TopicPartition, int] = {}
    for span, _ in reads(history):
        if span.isolation == COMMITTED_READS:
            until[partition_of(span)] = max(until.get(partition_of(span), 0), span.first_offset + span.count)
    for end in history.ends:
        if end.last_stable_offset >= 0:
            until[partition_of(end)] = max(
                until.get(partition_of(end), 0), min(end.last_stable_offset, end.high_watermark)
            )
    return until


@computed_once
def log_starts(history: History) -> dict[TopicPartition, int]:
    """Return the largest log start offset that any response had of each partition."""
    starts: dict[TopicPartition, int] = {}
    rows: list[PositionRow | EndRow] = [*history.positions, *history.ends]
    for row in rows:
        starts[partition_of(row)] = max(starts.get(partition_of(row), 0), row.log_start_offset)
    return starts


@computed_once
def committed_moves(history: History) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Return from where to where each response moved a reader with read_committed."""
    readers = {span.process: None for span, _ in reads(history) if span.isolation == COMMITTED_READS}
    moves = [row for row in history.positions if row.process in readers and row.error is None]
    return {
        partition: [(row.fetch_offset, row.next_offset) for row in rows]
        for partition, rows in grouped(moves, partition_of).items()
    }


def missing(
    history: History, transaction: ClientTransaction, unreadable: Mapping[TopicPartition, int]
) -> list[tuple[Value, WrittenValue]]:
    """Return the values of a transaction that no reader with read_committed saw, although such readers know what is
    at their offsets.

    E-7, KIP-405: below the offset that ``unreadable`` has for a partition the metadata of its remote segments may be
    lost. There only what such a reader got past counts.
    """
    seen, until, starts = sightings(history), known_until(history), log_starts(history)
    # Physical: without a response the offset is unknown. Kafka: records below the log start offset are deleted.
    found = []
    for value, written in transaction.values():
        partition, offset = value[0], written.offset
        if value in seen or value in excused(history)[COMMITTED_READS]:  # a cleaner may have taken it.
            continue
        if offset < 0 or not starts.get(partition, 0) <= offset < until.get(partition, 0):
            continue
        moves = committed_moves(history).get(partition, ())
        if offset >= unreadable.get(partition, 0) or any(first <= offset < end for first, end in moves):
            found.append((value, written))
    return found


@computed_once
def committed_offsets(history: History) -> dict[TopicPartition, list[int]]:
    """Return the sorted offsets at which readers with read_committed saw a record of ours."""
    by_partition: dict[TopicPartition, dict[int, None]] = {}
    for (partition, _, _), seen in sightings(history).items():
        by_partition.setdefault(partition, {}).update((sighting.offset, None) for sighting in seen)
    return {partition: sorted(offsets) for partition, offsets in by_partition.items()}


def between(offsets: list[int], first: int, end: int) -> list[int]:
    """Return those of the sorted offsets that are in [first, end)."""
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]


class AbortedRead(Check):
    """aborted-read (G1a): no reader with read_committed sees a value of a transaction that was never committed."""

    guarantee = "aborted-read"

    def end(self, history: History) -> None:
        seen = sightings(history)
        for transaction in transactions(history):
            if transaction.fate is not Fate.NEVER:
                continue  # Physical: an EndTxn whose response was lost may have taken effect.
            self.evidence += 1
            first_sightings = [(value, seen[value][0]) for value, _ in transaction.values() if value in seen]
            if first_sightings:
                value, first = min(first_sightings, key=lambda pair: pair[1].at_us)
                (topic, partition), writer, sequence = value
                self.violated(
                    first.at_us,
                    f"{first.process} read {topic}-{partition} offset {first.offset}: {writer}/{sequence} of "
                    f"{transaction.named}, which was never committed ({transaction.row.requested_end} was requested)",
                )


class PrecommittedRead(Check):
    """precommitted-read: no reader with read_committed has a value before its producer requested to commit it.

    A transaction's end is requested at ``TransactionRow.at_us`` at the earliest, and all times are of one clock.
    """

    guarantee = "precommitted-read"

    def end(self, history: History) -> None:
        seen = sightings(history)
        for transaction in transactions(history):
            requested_us = transaction.row.at_us
            if transaction.row.requested_end != "commit":
                continue  # aborted-read judges it.
            self.evidence += 1
            for value, _ in transaction.values():
                first = seen[value][0] if value in seen else None
                if first is not None and first.at_us < requested_us:
                    (topic, partition), writer, sequence = value
                    self.violated(
                        first.at_us,
                        f"{first.process} read {topic}-{partition} offset {first.offset}: {writer}/{sequence} "
                        f"{requested_us - first.at_us} us before {transaction.named} requested its commit",
                    )
                    break


LAST_EPOCH = 30_000
"""A producer ID has 32,767 epochs. Where it may have used them up, the next producer gets another one."""
IDLE_US = 2_500_000
"""Time after which an idle ID may be gone (X-10). No scenario has a smaller ``transactional.id.expiration.ms``."""


class LostTransaction(Check):
    """lost-transaction: readers with read_committed see a part of each transaction whose commit was acknowledged.

    If they see some of it and not all, torn-transaction judges it. A transactional ID that is in use keeps its producer
    ID, with rising epochs (X-1). If it gets another one, its coordinator has lost it, with any decision whose markers
    were not sent yet.

    E-7: the coordinator's partition may have lost its records, if no replica kept them.
    """

    guarantee = "lost-transaction"

    def end(self, history: History) -> None:
        if not history.writes_guaranteed:
            return  # Physical: the only replica lost its power, and nothing had been synced.
        self._judge_producer_ids(history)
        seen, unreadable = sightings(history), dict(self.context.replicas.unreadable())
        for transaction in transactions(history):
            is_excused = self.context.replicas.transactions_excused(transaction.row.transactional_id)
            if transaction.fate is not Fate.COMMITTED or is_excused:
                continue
            self.evidence += 1
            lost = missing(history, transaction, unreadable)
            if lost and not any(value in seen for value, _ in transaction.values()):
                ((topic, partition), writer, sequence), written = lost[0]
                self.violated(
                    transaction.row.until_us,
                    f"{transaction.named} was committed, and nobody read any of its values, such as "
                    f"{writer}/{sequence} at {topic}-{partition} offset {written.offset}",
                )

    def _judge_producer_ids(self, history: History) -> None:
        rows_with_id = [row for row in history.transactions if row.producer_id >= 0]
        for rows in grouped(rows_with_id, lambda row: (row.process, row.transactional_id)).values():
            if self.context.replicas.transactions_excused(rows[0].transactional_id):
                continue
            for before, row in pairwise(sorted(rows, key=lambda row: row.index)):
                is_same = before.producer_id == row.producer_id
                in_use = before.producer_epoch < LAST_EPOCH and row.from_us - before.from_us < IDLE_US
                if (is_same and row.producer_epoch < before.producer_epoch) or (not is_same and in_use):
                    self.violated(
                        row.from_us,
                        f"{row.transactional_id} went on as producer {row.producer_id}, epoch {row.producer_epoch}, "
                        f"after producer {before.producer_id}, epoch {before.producer_epoch}: it was forgotten",
                    )


Part = tuple[ClientTransaction, int]
"""A transaction and the offset that it sent for one partition of a group."""


class TornTransaction(Check):
    """torn-transaction: a transaction takes effect whole or not at all.

    Its values disagree if read_committed readers got one of them, and another one is missing. A transaction of unknown
    outcome is judged, too.

    Its values and the group offsets that it sent disagree if a group fetches an offset that only a never committed
    transaction sent, or an older offset after a transaction with a newer one was committed.
    """

    guarantee = "torn-transaction"

    def end(self, history: History) -> None:
        if not history.transactions:
            return
        self.evidence += sum(transaction.fate is Fate.COMMITTED for transaction in transactions(history))
        if history.writes_guaranteed:  # Physical: one replica may have lost any part of its records with its power.
            self._judge_values(history)
        self._judge_offsets(history)

    def _judge_values(self, history: History) -> None:
        seen, unreadable = sightings(history), dict(self.context.replicas.unreadable())
        for transaction in transactions(history):
            read_values = [value for value, _ in transaction.values() if value in seen]
            if not read_values or transaction.fate is Fate.NEVER:
                continue
            lost = missing(history, transaction, unreadable)
            if lost:
                ((topic, partition), writer, sequence), written = lost[0]
                self.violated(
                    transaction.row.until_us,
                    f"of {transaction.named} {len(read_values)} values were read with read_committed, and {len(lost)} "
                    f"are missing, such as {writer}/{sequence} at {topic}-{partition} offset {written.offset}",
                )

    def _judge_offsets(self, history: History) -> None:
        by_partition: dict[tuple[str, str, int], list[Part]] = {}
        for transaction in transactions(history):
            for row in transaction.offsets:
                if row.error is None:
                    key = (row.group, row.topic, row.partition)
                    by_partition.setdefault(key, []).append((transaction, row.offset))
        plain_commits = effective_requests(history, COMMIT)
        for key, fetches in effective_requests(history, FETCHED).items():
            if key in by_partition:
                for fetch in fetches:
                    self._judge_fetch(fetch, by_partition[key], plain_commits.get(key, []))

    def _judge_fetch(self, fetch: OffsetRequest, parts: list[Part], plain_commits: list[OffsetRequest]) -> None:
        """Judge the offset that a group fetched by the transactions and the plain commits of its partition."""
        fetched = fetch.row.offset
        commits = [
            commit for commit in plain_commits if commit.row.offset == fetched and commit.invoke_us <= fetch.until_us
        ]
        senders = [
            transaction
            for transaction, offset in parts
            if offset == fetched and transaction.row.at_us <= fetch.until_us
        ]
        possible = [transaction for transaction in senders if transaction.fate is not Fate.NEVER]
        if senders and not possible and not commits:
            self.violated(
                fetch.until_us,
                f"{fetch.named}: offset {fetched} was sent, which only {senders[0].named} sent. It was never committed",
            )
        committed = [
            (transaction, offset)
            for transaction, offset in parts
            if transaction.fate is Fate.COMMITTED and transaction.row.until_us <= fetch.invoke_us
        ]
        if not committed:
            return
        last, newest = max(committed, key=lambda part: part[0].row.at_us)
        if fetched >= newest:
            return
        # Physical: a commit requested before the last commit ended may have taken effect after it.
        requested_us = last.row.at_us
        is_late = any(commit.until_us > requested_us for commit in commits)
        is_late |= any(_ended_us(transaction) > requested_us for transaction in possible)
        if not is_late:
            self.violated(
                fetch.until_us,
                f"{fetch.named}: offset {fetched} was sent, though {last.named} had committed {newest}",
            )


def _ended_us(transaction: ClientTransaction) -> int:
    return NEVER_US if transaction.fate is Fate.UNKNOWN else transaction.row.until_us


Group = tuple[str, TopicPartition]
"""A group's ID, and a partition of its source."""


class ExactlyOnce(Check):
    """exactly-once (X-14): each input of workers that consume, transform and produce is once in their output.

    The output is the part of the target that readers with read_committed saw. Workers record which of their values was
    made from which offset of the source.
    """

    guarantee = "exactly-once"

    def end(self, history: History) -> None:
        if not history.transforms:
            return
        at_us = max((row.complete_us for row in history.operations), default=0)
        outputs = _outputs(history)
        self.evidence += sum(map(len, outputs.values()))
        for (group, (topic, partition)), by_offset in outputs.items():
            for offset, copies in by_offset.items():
                if len(copies) > 1:
                    self.violated(
                        at_us,
                        f"{topic}-{partition} offset {offset} is in the output of group {group} {len(copies)} times: "
                        f"{', '.join(sorted(copies))}",
                    )
        if history.writes_guaranteed:
            self._judge_missing(history, outputs, at_us)

    def _judge_missing(self, history: History, outputs: dict[Group, dict[int, set[str]]], at_us: int) -> None:
        """Judge the inputs up to the last committed offset of each group that are not in its output."""
        inputs, read_to_end = committed_offsets(history), {partition_of(row) for row in history.ends}
        first_offsets: dict[Group, int] = {}
        unknown: dict[Group, set[int]] = {}
        for row in history.transforms:
            source = (row.group, partition_of(row))
            first_offsets[source] = min(first_offsets.get(source, row.source_offset), row.source_offset)
            if (row.target_topic, row.target_partition) not in read_to_end:
                # Physical: the contents of a partition that was not read to its end are unknown.
                unknown.setdefault(source, set()).update(range(row.source_offset, row.source_offset + row.count))
        ends: dict[Group, int] = {}
        for transaction in transactions(history):
            if transaction.fate is Fate.COMMITTED:
                for sent in transaction.offsets:
                    if sent.error is None:
                        source = (sent.group, partition_of(sent))
                        ends[source] = max(ends.get(source, 0), sent.offset)
        for source, end in ends.items():
            group, (topic, partition) = source
            if source not in first_offsets:
                continue
            for offset in between(inputs.get(source[1], []), first_offsets[source], end):
                if offset not in outputs.get(source, {}) and offset not in unknown.get(source, ()):
                    self.violated(
                        at_us,
                        f"{topic}-{partition} offset {offset} was consumed by group {group} and is not in its output",
                    )


@computed_once
def _outputs(history: History) -> dict[Group, dict[int, set[str]]]:
    """Return by group and source partition, for each source offset, the values of the output that were made of it."""
    seen = sightings(history)
    by_group: dict[Group, dict[int, set[str]]] = {}
    for row in history.transforms:
        outputs = by_group.setdefault((row.group, partition_of(row)), {})
        for step in range(row.count):
            copies = _copies(row, step, seen)
            if copies:
                outputs.setdefault(row.source_offset + step, set()).update(copies)
    return by_group


def _copies(row: TransformRow, step: int, seen: dict[Value, list[Sighting]]) -> set[str]:
    target = (row.target_topic, row.target_partition)
    sequence = row.first_sequence + step
    return {
        f"{row.target_topic}-{row.target_partition} offset {sighting.offset}: {row.writer}/{sequence}"
        for sighting in seen.get((target, row.writer, sequence), ())
    }
