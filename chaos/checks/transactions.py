"""Transactions as clients see them: their sends, their outcome, and the records that read_committed readers got."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from chaos.checks.batches import BatchIdentity, batches_of, producing_of, record_count
from chaos.checks.check import Check, CheckContext, FetchCheck, Inspection, ProducerCheck
from chaos.checks.committed_offsets import COMMIT, FETCHED, NEVER_US, OffsetRequest, effective_requests
from chaos.checks.compacted_topics import excused
from chaos.checks.fetch_model import CompletedFetch
from chaos.checks.history import History, TopicPartition, WrittenValue, computed_once, expanded, grouped, partition_of
from chaos.checks.producer_view import EndedTransaction, LogProducers, ProducedBatch
from chaos.checks.reads import reads
from reference_broker.core.events import Event
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import PartitionData
from reports.rows import CommitRow, EndRow, PositionRow, SpanRow, TransactionRow, TransformRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


COMMITTED_READS = 1
"""``SpanRow.isolation`` of readers with read_committed."""

Value: TypeAlias = tuple[TopicPartition, str, int]
"""Where it was written, its writer, and the writer's number of it. No value is sent twice."""


class Fate(Enum):
    """The outcome of a transaction, as far as clients know it."""

    COMMITTED = "committed"
    NEVER = "never committed"
    """An abort or no end was requested, or the request to commit was finally rejected."""
    UNKNOWN = "unknown"
    """A commit was requested, and its outcome is not known."""


@dataclass(frozen=True, slots=True)
class Transaction:
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
            ((partition_of(span), each.writer, each.sequence), each) for span in self.sent for each in expanded(span)
        ]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A value that a read_committed reader got at this offset, with the response to its operation ``index``."""

    offset: int
    at_us: int
    process: str
    index: int


@computed_once
def transactions(history: History) -> list[Transaction]:
    """Return all transactions, in the order of recording."""
    sent = grouped((span for span in history.runs if span.kind == "send"), lambda span: (span.process, span.index))
    offsets = grouped(
        (row for row in history.commits if row.kind == "transaction"), lambda row: (row.process, row.index)
    )
    return [
        Transaction(
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
    for span, operation in sorted(reads(history), key=lambda each: each[1].complete_us):
        if span.isolation == COMMITTED_READS and span.writer:
            for each in expanded(span):
                key = (partition_of(span), each.writer, each.sequence)
                by_value.setdefault(key, []).append(
                    Sighting(each.offset, operation.complete_us, span.process, span.index)
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
        where: [(row.fetch_offset, row.next_offset) for row in rows]
        for where, rows in grouped(moves, partition_of).items()
    }


def missing(
    history: History, transaction: Transaction, unreadable: Mapping[TopicPartition, int]
) -> list[tuple[Value, WrittenValue]]:
    """Return the values of a transaction that no reader with read_committed saw, although such readers know what is
    at their offsets.

    E-7, KIP-405: below the offset that ``unreadable`` has for a partition the metadata of its remote segments may be
    lost. There only what such a reader got past counts.
    """
    seen, until, starts = sightings(history), known_until(history), log_starts(history)
    # Physical: without a response the offset is unknown. Kafka: records below the log start offset are deleted.
    return [
        (key, value)
        for key, value in transaction.values()
        if key not in seen
        and key not in excused(history)[COMMITTED_READS]  # a cleaner may have taken it.
        and starts.get(key[0], 0) <= value.offset < until.get(key[0], 0)
        and value.offset >= 0
        and (
            value.offset >= unreadable.get(key[0], 0)
            or any(first <= value.offset < end for first, end in committed_moves(history).get(key[0], ()))
        )
    ]


@computed_once
def committed_offsets(history: History) -> dict[TopicPartition, list[int]]:
    """Return the sorted offsets at which readers with read_committed saw a record of ours."""
    by_partition: dict[TopicPartition, dict[int, None]] = {}
    for key, where in sightings(history).items():
        by_partition.setdefault(key[0], {}).update((each.offset, None) for each in where)
    return {where: sorted(offsets) for where, offsets in by_partition.items()}


def between(offsets: list[int], first: int, end: int) -> list[int]:
    """Return those of the sorted offsets that are in [first, end)."""
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]


class AbortedRead(Check):
    """aborted-read (G1a): no reader with read_committed sees a value of a transaction that was never committed."""

    guarantee = "aborted-read"

    def end(self, history: History) -> None:
        seen = sightings(history)
        for each in transactions(history):
            if each.fate is not Fate.NEVER:
                continue  # Physical: an EndTxn whose response was lost may have taken effect.
            self.evidence += 1
            shown = [(key, seen[key][0]) for key, _ in each.values() if key in seen]
            if shown:
                ((topic, partition), writer, sequence), first = min(shown, key=lambda entry: entry[1].at_us)
                self.violated(
                    first.at_us,
                    f"{first.process} read {topic}-{partition} offset {first.offset}: {writer}/{sequence} of "
                    f"{each.named}, which was never committed ({each.row.requested_end} was requested)",
                )


class PrecommittedRead(Check):
    """precommitted-read: no reader with read_committed has a value before its producer requested to commit it.

    A transaction's end is requested at ``TransactionRow.at_us`` at the earliest, and all times are of one clock.
    """

    guarantee = "precommitted-read"

    def end(self, history: History) -> None:
        seen = sightings(history)
        for each in transactions(history):
            if each.row.requested_end != "commit":
                continue  # aborted-read judges it.
            self.evidence += 1
            for key, _ in each.values():
                first = seen[key][0] if key in seen else None
                if first is not None and first.at_us < each.row.at_us:
                    (topic, partition), writer, sequence = key
                    self.violated(
                        first.at_us,
                        f"{first.process} read {topic}-{partition} offset {first.offset}: {writer}/{sequence} "
                        f"{each.row.at_us - first.at_us} us before {each.named} requested its commit",
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
        self._forgotten(history)
        seen, unreadable = sightings(history), dict(self.context.replicas.unreadable())
        for each in transactions(history):
            if each.fate is not Fate.COMMITTED or self.context.replicas.transactions_excused(each.row.transactional_id):
                continue
            self.evidence += 1
            gone = missing(history, each, unreadable)
            if gone and not any(key in seen for key, _ in each.values()):
                ((topic, partition), writer, sequence), value = gone[0]
                self.violated(
                    each.row.until_us,
                    f"{each.named} was committed, and nobody read any of its values, such as {writer}/{sequence} at "
                    f"{topic}-{partition} offset {value.offset}",
                )

    def _forgotten(self, history: History) -> None:
        begun = [row for row in history.transactions if row.producer_id >= 0]
        for rows in grouped(begun, lambda row: (row.process, row.transactional_id)).values():
            if self.context.replicas.transactions_excused(rows[0].transactional_id):
                continue
            for before, row in pairwise(sorted(rows, key=lambda each: each.index)):
                is_same = before.producer_id == row.producer_id
                in_use = before.producer_epoch < LAST_EPOCH and row.from_us - before.from_us < IDLE_US
                if (is_same and row.producer_epoch < before.producer_epoch) or (not is_same and in_use):
                    now, then = (f"{each.producer_id}, epoch {each.producer_epoch}" for each in (row, before))
                    self.violated(
                        row.from_us,
                        f"{row.transactional_id} went on as producer {now}, after producer {then}: it was forgotten",
                    )


Part = tuple[Transaction, int]
"""A transaction and the offset that it sent for one partition of a group."""


class TornTransaction(Check):
    """torn-transaction: a transaction takes effect whole or not at all.

    Torn inside: read_committed readers got one of its values, and another value is missing. A transaction of unknown
    outcome is judged, too.

    Torn outside: its values and the group offsets that it sent disagree. A group fetches an offset that only a never
    committed transaction sent. Or it fetches an older offset after a transaction with a newer one was committed.
    """

    guarantee = "torn-transaction"

    def end(self, history: History) -> None:
        if not history.transactions:
            return
        self.evidence += sum(each.fate is Fate.COMMITTED for each in transactions(history))
        if history.writes_guaranteed:  # Physical: one replica may have lost any part of its records with its power.
            self._inside(history)
        self._outside(history)

    def _inside(self, history: History) -> None:
        seen, unreadable = sightings(history), dict(self.context.replicas.unreadable())
        for each in transactions(history):
            there = [key for key, _ in each.values() if key in seen]
            gone = missing(history, each, unreadable) if there and each.fate is not Fate.NEVER else []
            if gone:
                ((topic, partition), writer, sequence), value = gone[0]
                self.violated(
                    each.row.until_us,
                    f"of {each.named} {len(there)} values were read with read_committed, and {len(gone)} are missing, "
                    f"such as {writer}/{sequence} at {topic}-{partition} offset {value.offset}",
                )

    def _outside(self, history: History) -> None:
        parts = [
            ((row.group, row.topic, row.partition), (each, row.offset))
            for each in transactions(history)
            for row in each.offsets
            if row.error is None
        ]
        sent = {key: [part for _, part in pairs] for key, pairs in grouped(parts, lambda each: each[0]).items()}
        plain = effective_requests(history, COMMIT)
        for key, fetches in effective_requests(history, FETCHED).items():
            if key in sent:
                for fetch in fetches:
                    self._judge(fetch, sent[key], plain.get(key, []))

    def _judge(self, fetch: OffsetRequest, sent: list[Part], plain: list[OffsetRequest]) -> None:
        fetched = fetch.row.offset
        of_plain = [each for each in plain if each.row.offset == fetched and each.invoke_us <= fetch.until_us]
        of_sent = [each for each, offset in sent if offset == fetched and each.row.at_us <= fetch.until_us]
        possible = [each for each in of_sent if each.fate is not Fate.NEVER]
        if of_sent and not possible and not of_plain:
            self.violated(
                fetch.until_us,
                f"{fetch.named}: offset {fetched} was sent, which only {of_sent[0].named} sent. It was never committed",
            )
        done = [
            (each, offset)
            for each, offset in sent
            if each.fate is Fate.COMMITTED and each.row.until_us <= fetch.invoke_us
        ]
        if not done:
            return
        last, newest = max(done, key=lambda part: part[0].row.at_us)
        if fetched >= newest:
            return
        # Physical: a commit requested before the last commit ended may have taken effect after it.
        late = any(each.until_us > last.row.at_us for each in of_plain) or any(
            _ended_us(each) > last.row.at_us for each in possible
        )
        if not late:
            self.violated(
                fetch.until_us,
                f"{fetch.named}: offset {fetched} was sent, though {last.named} had committed {newest}",
            )


def _ended_us(transaction: Transaction) -> int:
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
            self._never(history, outputs, at_us)

    def _never(self, history: History, outputs: dict[Group, dict[int, set[str]]], at_us: int) -> None:
        inputs, ended = committed_offsets(history), {partition_of(row) for row in history.ends}
        begun: dict[Group, int] = {}
        unread: dict[Group, set[int]] = {}
        for row in history.transforms:
            key = (row.group, partition_of(row))
            begun[key] = min(begun.get(key, row.source_offset), row.source_offset)
            if (row.target_topic, row.target_partition) not in ended:
                # Physical: the contents of a partition that was not read to its end are unknown.
                unread.setdefault(key, set()).update(range(row.source_offset, row.source_offset + row.count))
        done: dict[Group, int] = {}
        for each in transactions(history):
            if each.fate is Fate.COMMITTED:
                for sent in each.offsets:
                    if sent.error is None:
                        key = (sent.group, partition_of(sent))
                        done[key] = max(done.get(key, 0), sent.offset)
        for key, end in done.items():
            group, (topic, partition) = key
            if key not in begun:
                continue
            for offset in between(inputs.get(key[1], []), begun[key], end):
                if offset not in outputs.get(key, {}) and offset not in unread.get(key, ()):
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
            for name in _copies(row, step, seen):
                outputs.setdefault(row.source_offset + step, set()).add(name)
    return by_group


def _copies(row: TransformRow, step: int, seen: dict[Value, list[Sighting]]) -> set[str]:
    where = (row.target_topic, row.target_partition)
    sequence = row.first_sequence + step
    return {
        f"{where[0]}-{where[1]} offset {each.offset}: {row.writer}/{sequence}"
        for each in seen.get((where, row.writer, sequence), ())
    }


class LsoRegression(Check):
    """lso-regression (X-4): a leader's last stable offset never goes back within its leader epoch.

    From outside, the check uses responses to fetches that named the leader epoch, since a leader of another epoch
    rejects those. Two responses have an order if the first arrived before the second was requested. From inside, it
    compares the logs in each thorough comparison.

    KIP-392: followers serve the consumers of their rack. After a restart a follower knows only the high watermark of
    its checkpoint, until its leader sends the current one. So nodes that another node leads in the epoch are not
    judged.
    """

    guarantee = "lso-regression"
    inspection = Inspection.ONLY_THOROUGH

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._shown: dict[tuple[int, int, bytes, int], tuple[int, int]] = {}
        """leader epoch and last stable offset by node, incarnation and partition"""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        for partition in node.broker.partitions.by_name.values():
            self._look(at_us, incarnation, node.broker.node_id, partition)

    def _look(self, at_us: int, incarnation: int, node_id: int, partition: Partition) -> None:
        key = (node_id, incarnation, partition.topic_id, partition.index)
        epoch, before = self._shown.get(key, (-1, 0))
        shown = partition.log.last_stable_offset
        if partition.leader_epoch == epoch and shown < before:
            self.violated(
                at_us,
                f"{partition.topic}-{partition.index}: node {node_id}, the leader in epoch {epoch}, shows the last "
                f"stable offset {shown} after {before}",
            )
        self._shown[key] = (partition.leader_epoch, shown)

    def end(self, history: History) -> None:
        shown = [
            (row, operation)
            for row in history.positions
            if row.last_stable_offset >= 0
            and row.leader_epoch >= 0
            and row.error is None
            and (operation := history.operation_of.get((row.process, row.index))) is not None
            and operation.node >= 0
        ]
        self.evidence += len(shown)
        of_leader = grouped(shown, lambda each: (partition_of(each[0]), each[1].node, each[0].leader_epoch))
        for ((topic, partition), node, epoch), rows_of_leader in of_leader.items():
            if node not in self.context.replicas.leaders.get((f"{topic}-{partition}", epoch), {node}):
                continue
            ended = sorted(rows_of_leader, key=lambda each: each[1].complete_us)
            known, at = -1, 0
            for row, operation in sorted(rows_of_leader, key=lambda each: each[1].invoke_us):
                while at < len(ended) and ended[at][1].complete_us < operation.invoke_us:
                    known = max(known, ended[at][0].last_stable_offset)
                    at += 1
                if row.last_stable_offset < known:
                    self.violated(
                        operation.complete_us,
                        f"{topic}-{partition}: node {node}, the leader in epoch {epoch}, sent {row.process} the last "
                        f"stable offset {row.last_stable_offset} after {known}",
                    )


class StableOffsetExact(ProducerCheck):
    """lso-regression (X-4, X-13): each log's last stable offset is the high watermark, or the first offset of the
    earliest transaction that is open or whose marker the high watermark has not passed.

    The check judges leaders and followers after each event that changed the log. Where records are gone, a log may not
    know a transaction that ended above its high watermark: then the offset may be smaller until the high watermark has
    passed the end that the log had when it was opened or truncated (X-4: "may show less until ..."). A cleaner removes
    only records of decided transactions (X-11), so a log that starts with a smaller high watermark need not know these.
    """

    guarantee = "lso-regression"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.producers.on_log_replayed.append(self.log_replayed)
        self.producers.on_high_watermark_moved.append(self.high_watermark_moved)

    def log_replayed(
        self,
        at_us: int,
        node: "Node",
        producers: LogProducers,
        new: Sequence[ProducedBatch] | None,  # noqa: ARG002
    ) -> None:
        self.high_watermark_moved(at_us, node, producers)

    def high_watermark_moved(self, at_us: int, node: "Node", producers: LogProducers) -> None:
        log, wanted = producers.log, producers.stable
        self.evidence += bool(producers.open or producers.ended)
        shown = log.last_stable_offset
        if wanted <= shown <= producers.most_stable:
            return
        is_behind = producers.known_from > 0 or log.high_watermark < producers.opened_end
        if shown < wanted and is_behind and not producers.is_whole:
            return
        self.violated(
            at_us,
            f"{log.directory} on node {node.broker.node_id} shows the last stable offset {shown}, and its batches give "
            f"{wanted}: the high watermark is {log.high_watermark}, open transactions begin at "
            f"{sorted(producers.open.values())}",
        )


def _has_none_of(transaction: EndedTransaction, batches: Sequence[tuple[BatchIdentity, bytes]]) -> bool:
    """Return whether no batch has records of the transaction."""
    return not any(
        transaction.first_offset <= batch.base_offset < transaction.marker
        and not batch.control
        and record_count(data) > 0
        and producing_of(data).producer_id == transaction.producer_id
        for batch, data in batches
    )


class AbortedListed(ProducerCheck, FetchCheck):
    """aborted-read (X-5): a response to a fetch with read_committed has no record at or above the last stable offset,
    and it lists every aborted transaction that overlaps its records, and none that was not aborted.

    Its partition may be led or followed (KIP-392). Where the cleaner has removed the records of an aborted transaction
    (X-11), it need not be listed.
    """

    guarantee = "aborted-read"

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:  # noqa: ARG002
        if not fetch.request.reads_committed:
            return
        fetched = [
            (partition, each)
            for name, each in fetch.data.items()
            if each.records and each.error_code == 0 and (partition := fetch.served(name)) is not None
        ]
        if fetched:
            self.context.replicas.after_event(fetch.node, lambda us, node: self._judge_all(us, node, fetched))

    def _judge_all(self, at_us: int, node: "Node", fetched: Sequence[tuple[Partition, PartitionData]]) -> None:
        for partition, sent in fetched:
            producers = self.producers.of(at_us, node, partition.log)
            if producers is not None:
                self._judge(at_us, node, producers, sent)

    def _judge(self, at_us: int, node: "Node", producers: LogProducers, sent: PartitionData) -> None:
        batches = list(batches_of(bytes(sent.records or b"")))
        if not batches:
            return
        self.evidence += 1
        begin, last = batches[0][0].base_offset, batches[-1][0].last_offset
        who = f"{producers.log.directory}: node {node.broker.node_id} sent offsets {begin}..{last} with read_committed"
        stable = producers.greatest_stable
        if not last < sent.last_stable_offset <= stable:
            self.violated(at_us, f"{who} and the last stable offset {sent.last_stable_offset}, and it is {stable}")
        listed = {(int(each.producer_id), int(each.first_offset)) for each in sent.aborted_transactions or ()}
        is_cleaned, behind = producers.log.config.is_compacted, set[tuple[int, int]]()
        for each in reversed(producers.ended):
            if each.marker < begin:
                break
            if each.commits:
                continue
            behind.add((each.producer_id, each.first_offset))
            is_missing = each.first_offset <= last and (each.producer_id, each.first_offset) not in listed
            if is_missing and not (is_cleaned and _has_none_of(each, batches)):
                self.violated(
                    at_us,
                    f"{who}, and does not list the transaction of producer {each.producer_id} that began at "
                    f"{each.first_offset} and was aborted at {each.marker}",
                )
        wrong = listed - behind
        if wrong and producers.known_from == 0:
            self.violated(at_us, f"{who}, and lists (producer ID, first offset) {sorted(wrong)}, not aborted there")
