"""Markers and offsets of transactions in partitions: their first batches, their markers, and hanging transactions.

``state_changes.py`` judges the values of their transactional IDs.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from chaos.checks.check import Check, CheckContext, ProducerCheck, StateCheck
from chaos.checks.history import OFFSETS_TOPIC, History, TopicPartition, grouped, partition_of
from chaos.checks.log.producer_view import LoggedProducer, LogProducers, ProducedBatch, lone_batch_in
from chaos.checks.replication.replica_view import offsets_partition
from chaos.checks.transactions.client_transactions import ClientTransaction, transactions
from chaos.checks.transactions.transaction_state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    OUTCOMES,
    PREPARED,
    StatePartition,
    StateValue,
)
from reference_broker.core.events import Effect, Event, Request
from reference_broker.wire.apis import ApiKey
from reports.rows import DescribedTransactionRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

CLEANUP_US = 10_000_000
"""Kafka's default of ``transaction.abort.timed.out.transaction.cleanup.interval.ms``."""

_Write: TypeAlias = tuple[int, TopicPartition, int, int, int]
"""Node, partition, producer ID, epoch and first sequence of a transactional batch."""


class WritesVerified(StateCheck, ProducerCheck):
    """transactions-consistent (X-9, KIP-890): a leader appends the first batch of a transaction only while the
    coordinator has it open with that partition, producer ID and epoch.

    The coordinator confirms it, or adds the partition, between the arrival of the request and the append. If a marker
    of the producer was appended meanwhile, the confirmed transaction has ended, so the coordinator must have a
    transaction open after that. Later batches of a transaction that is open in the partition need no confirmation. With
    ``transaction.partition.verification.enable=false`` nothing is confirmed. After a loss of committed values of its
    partition (E-7) an ID is not judged.
    """

    guarantee = "transactions-consistent"
    acts_on = (ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.producers.on_batch_appended.append(self.batch_appended)
        self.producers.on_log_replayed.append(self.log_replayed)
        self._arrived: dict[_Write, int] = {}
        """time of the first request with each batch that is not appended yet"""
        self._new: list[_Write] = []
        self._marked: dict[tuple[int, TopicPartition, int], int] = {}
        """time at which each node, as the leader, appended the last marker of a partition and a producer ID, where that
        is known exactly"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if type(event) is not Request or getattr(event.body, "transactional_id", None) is None:
            return
        body: Any = event.body
        node_id = node.broker.node_id
        if event.api_key == ApiKey.TXN_OFFSET_COMMIT:
            topic = node.broker.quorum_node.loader.image.topics.get(OFFSETS_TOPIC)
            count = 0 if topic is None else len(topic.partitions)
            where = OFFSETS_TOPIC, offsets_partition(str(body.group_id), count)
            self._arrived.setdefault((node_id, where, int(body.producer_id), int(body.producer_epoch), -1), at_us)
        elif event.api_key == ApiKey.PRODUCE:
            names = node.broker.partitions.topic_names
            for each in body.topics:
                name = each.topic or names.get(bytes(each.topic_id), "")
                for partition in each.partitions:
                    batch = lone_batch_in(partition.records)
                    if batch is not None:
                        self._arrived.setdefault((node_id, (name, partition.partition), *batch), at_us)

    def batch_appended(
        self,
        at_us: int,  # noqa: ARG002
        node: "Node",
        producers: LogProducers,
        known: LoggedProducer | None,
        batch: ProducedBatch,
    ) -> None:
        if batch.commits is not None or not batch.is_transactional or not _led_here(node, producers, batch):
            return
        partition = producers.log.directory.rpartition("-")[0], producers.index
        write = node.broker.node_id, partition, batch.producer_id, batch.epoch, batch.first_sequence
        is_open = known is not None and known.open_from >= 0 and known.epoch == batch.epoch
        if is_open or not node.broker.config.transaction_partition_verification_enable:
            self._arrived.pop(write, None)
        else:
            if not self._new:
                self.context.replicas.after_event(node, self._judge)
            self._new.append(write)

    def log_replayed(
        self, at_us: int, node: "Node", producers: LogProducers, new: Sequence[ProducedBatch] | None
    ) -> None:
        # Several batches at once may have been appended at earlier events.
        if new is not None and len(new) == 1 and new[0].commits is not None and _led_here(node, producers, new[0]):
            partition = producers.log.directory.rpartition("-")[0], producers.index
            self._marked[node.broker.node_id, partition, new[0].producer_id] = at_us

    def _judge(self, at_us: int, node: "Node") -> None:
        new, self._new = self._new, []
        for write in new:
            arrived_us = self._arrived.pop(write, None)
            node_id, partition, producer_id, epoch, first = write
            owner = self.transactions.owners.get(producer_id)
            if arrived_us is None or (owner is not None and self.transactions.has_lost(owner[1])):
                continue
            self.evidence += 1
            since_us = max(arrived_us, self._marked.get((node_id, partition, producer_id), -1) + 1)
            values = [] if owner is None else self.transactions.since(owner[1], since_us)
            is_open = any(
                (value.state, value.producer_id, value.epoch) == (ONGOING, producer_id, epoch)
                and partition in value.partitions
                for value in values
            )
            if not is_open:
                self.violated(
                    at_us,
                    f"{partition[0]}-{partition[1]}: node {node.broker.node_id} began a transaction of producer "
                    f"{producer_id}, epoch {epoch}, with sequence {first}, which came at {arrived_us} us, and since "
                    f"{since_us} us its coordinator had {', '.join(value.named for value in values) or 'nothing'}",
                )


def _led_here(node: "Node", producers: LogProducers, batch: ProducedBatch) -> bool:
    """Return whether this node appended the batch as the leader."""
    led = node.broker.partitions.by_id.get((producers.log.topic_id, producers.index))
    return led is not None and led.log is producers.log and led.leader_epoch == batch.leader_epoch


_Marker: TypeAlias = tuple[TopicPartition, int, int, bool]
"""Partition, producer ID, epoch and whether it commits."""
KEPT_MARKERS = 4
"""number of equal markers of a partition, written one after the other, that are kept"""


class MarkersDecided(StateCheck, ProducerCheck):
    """transactions-consistent (X-3): a partition gets a marker only by a committed decision of that kind that names
    it, and a transaction is complete only when each of its partitions has the marker below its high watermark.

    The check judges the markers that leaders append, and the values CompleteCommit and CompleteAbort of coordinators.
    It excuses partitions of deleted topics, and those where a newer epoch has ended the transaction. An administrator
    may end a hanging transaction (X-12), with WriteTxnMarkers from a client that names the partition.

    E-7: where no replica has kept committed values of an ID's partition, a marker may be without a decision if its
    producer had this epoch before the loss, and a decision that was kept may be completed without another marker. Where
    no replica has kept committed records of a partition, markers of earlier decisions may be missing in it.
    """

    guarantee = "transactions-consistent"
    acts_on = (ApiKey.WRITE_TXN_MARKERS,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.producers.on_batch_appended.append(self.batch_appended)
        self.transactions.on_value_appended.append(self.value_appended)
        self._requested: set[_Marker] = set()
        """markers that clients requested"""
        self._new: list[tuple[_Marker, int]] = []
        """markers of the current event with their offsets"""
        self._written: dict[_Marker, dict[int, int]] = {}
        """offset and time of the last such markers in any log"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if type(event) is Request and event.api_key == ApiKey.WRITE_TXN_MARKERS and event.tag.role == "client":
            body: Any = event.body
            self._requested.update(
                (
                    (str(topic.name), int(index)),
                    int(marker.producer_id),
                    int(marker.producer_epoch),
                    marker.transaction_result,
                )
                for marker in body.markers
                for topic in marker.topics
                for index in topic.partition_indexes
            )

    def batch_appended(
        self,
        at_us: int,
        node: "Node",
        producers: LogProducers,
        known: LoggedProducer | None,  # noqa: ARG002
        batch: ProducedBatch,
    ) -> None:
        if batch.commits is None:
            return
        partition = producers.log.directory.rpartition("-")[0], producers.index
        marker = partition, batch.producer_id, batch.epoch, batch.commits
        is_led = _led_here(node, producers, batch)
        # Two coordinators may have it written one after the other. A new leader may write it again at a lower offset,
        # where the first one was lost.
        written = self._written.setdefault(marker, {})
        if is_led or batch.offset > max(written, default=-1):
            written.pop(batch.offset, None)
            written[batch.offset] = at_us
            if len(written) > KEPT_MARKERS:
                del written[next(iter(written))]
        if is_led:
            if not self._new:
                self.context.replicas.after_event(node, self._judge)
            self._new.append((marker, batch.offset))

    def _judge(self, at_us: int, node: "Node") -> None:
        new, self._new = self._new, []
        for marker, offset in new:
            self.evidence += 1
            partition, producer_id, epoch, commits = marker
            kind = "commit" if commits else "abort"
            is_decided = (producer_id, epoch, commits, partition) in self.transactions.decided
            owner = self.transactions.owners.get(producer_id)
            is_lost = owner is not None and self.transactions.may_have_lost_decision(owner[1], producer_id, epoch)
            if is_decided or is_lost or marker in self._requested:
                continue
            self.violated(
                at_us,
                f"{partition[0]}-{partition[1]}: node {node.broker.node_id} wrote the {kind} marker of "
                f"producer {producer_id}, epoch {epoch}, at offset {offset}, and no such decision is committed",
            )

    def value_appended(self, at_us: int, node: "Node", partition: StatePartition, value: StateValue) -> None:
        values = partition.values.get(value.transactional_id)
        if value.state not in (COMPLETE_COMMIT, COMPLETE_ABORT) or not values or values[-1].offset < partition.kept_end:
            return
        before = values[-1]
        commits = OUTCOMES[value.state]
        if before.state not in PREPARED or OUTCOMES[before.state] is not commits:
            return  # TransactionSteps judges it.
        for where in sorted(before.partitions):
            self.evidence += 1
            marker = where, before.producer_id, before.epoch, commits
            written = self._written.get(marker, {})
            high_watermark = self._high_watermark(where)
            is_replicated = any(offset < high_watermark and us >= before.at_us for offset, us in written.items())
            if is_replicated or self._is_excused(node, where, before) or self._is_in_unreported(marker, high_watermark):
                continue
            self.violated(
                at_us,
                f"{value.transactional_id}: node {node.broker.node_id} wrote {value.named}, and "
                f"{where[0]}-{where[1]} has no marker of producer {before.producer_id}, epoch {before.epoch}, "
                f"below its high watermark",
            )

    def _is_in_unreported(self, marker: _Marker, high_watermark: int) -> bool:
        """Return whether a log has the marker in batches that the view has not reported one by one: those that it had
        read as a whole, and those that it has not read.

        X-3: a marker ends what the producer wrote before it, so that of an earlier transaction with the same epoch has
        records of the producer behind it, in this log or in another one.
        """
        partition, *ended = marker
        own = [
            (producers, each)
            for producers in self._logs_of(partition)
            for each in (*producers.unread(), *producers.batches)
            if (each.producer_id, each.epoch) == (marker[1], marker[2])
        ]
        last_written = max(
            ((each.leader_epoch, each.offset) for _, each in own if each.commits is None), default=(-1, -1)
        )
        return any(
            each.offset < high_watermark
            and [each.producer_id, each.epoch, each.commits] == ended
            and (each.leader_epoch, each.offset) > last_written
            for producers, each in own
            if each.offset < producers.opened_end or each.offset >= producers.read_end
        )

    def _logs_of(self, partition: TopicPartition) -> list[LogProducers]:
        directory = f"{partition[0]}-{partition[1]}"
        return [each for (_, name), each in self.producers.logs.items() if name == directory]

    def _high_watermark(self, partition: TopicPartition) -> int:
        return max((log.log.high_watermark for log in self._logs_of(partition)), default=0)

    def _is_excused(self, node: "Node", partition: TopicPartition, before: StateValue) -> bool:
        topic = node.broker.quorum_node.loader.image.topics.get(partition[0])
        if topic is None or partition[1] >= len(topic.partitions):
            return True
        if self.context.replicas.may_have_lost(partition, before.at_us):
            return True
        states = [log.states.get(before.producer_id) for log in self._logs_of(partition)]
        return any(state is not None and state.epoch > before.epoch for state in states)


class HangingTransaction(Check):
    """hanging-transaction: once all is quiet, no transaction that should have ended holds back the last stable offset.

    A coordinator aborts a transaction that is older than its timeout, and checks for that every
    ``transaction.abort.timed.out.transaction.cleanup.interval.ms``. Until then a transaction with records in the
    partition whose end was not acknowledged may be open. Kafka: its age is by the wall clock of the coordinator, which
    a fault may have stepped back.

    E-7: a coordinator whose partition has lost its records no longer knows its transactions and never ends them. An
    operator aborts them (KIP-664). That excuses the transactional IDs of that partition.
    """

    guarantee = "hanging-transaction"

    def end(self, history: History) -> None:
        self.evidence += len(history.transactions)
        late_us = CLEANUP_US + history.clock_steps_us
        for end in history.ends:
            if not 0 <= end.last_stable_offset < end.high_watermark:
                continue
            partition = partition_of(end)
            own = [transaction for transaction in transactions(history) if _may_write_to(transaction, partition)]
            for producer_id in self.context.producers.holding(partition, end.last_stable_offset):
                may_be_open = any(
                    transaction.row.outcome != "ok"
                    and transaction.row.at_us + transaction.row.timeout_us + late_us >= end.end_us
                    for transaction in own
                    if producer_id in (transaction.row.producer_id, None)
                )
                if not may_be_open and not self.context.is_forgotten(producer_id):
                    self.violated(
                        end.end_us,
                        f"{end.topic}-{end.partition}: the last stable offset is at {end.last_stable_offset}, the high "
                        f"watermark at {end.high_watermark}, and no transaction of "
                        f"{'any producer' if producer_id is None else f'producer {producer_id}'} may be open there",
                    )


def _may_write_to(transaction: ClientTransaction, partition: TopicPartition) -> bool:
    """Return whether the transaction has values in the partition, or offsets that may be there."""
    return any(partition_of(each) == partition for each in transaction.sent) or (
        partition[0] == OFFSETS_TOPIC and bool(transaction.offsets)
    )


NOT_ADDED = "not_added"
"""``TransactionRow.error`` of a transaction of which no coordinator knew."""


class _Key(NamedTuple):
    """An open transaction: its partition, its producer, and its first offset there."""

    where: TopicPartition
    producer_id: int
    start_offset: int


class HangingFound(Check):
    """hanging-found: with Kafka's requests an admin finds each hanging transaction, no other, and can abort it (X-12).

    KIP-664: DescribeProducers reports where each transaction begins that is open in a partition. ListTransactions
    and DescribeTransactions report which of them a coordinator still expects to end. WriteTxnMarkers ends the others.

    - A transaction that no coordinator ever knew is reported by each check of its partition, until somebody requests to
      abort it.
    - A transaction that a janitor found hanging in two checks was not open and known to its coordinator. A transaction
      is surely both from its first acknowledged write until its producer requests its end, or until its timeout.
    - A transaction that was aborted successfully is reported by no later check.

    A leader that does not know yet that it was replaced may report an old state. So a scenario in which nodes are cut
    off or paused does not have this guarantee.
    """

    guarantee = "hanging-found"

    def end(self, history: History) -> None:
        reported = history.described_transactions
        self.evidence += len(reported)
        opened = {
            _Key(partition_of(span), span.producer_id, span.first_offset): transaction
            for transaction in transactions(history)
            for span in transaction.sent
            if span.first_offset >= 0
        }
        by_key = grouped(reported, _key)
        self._judge_missed(reported, opened, by_key)
        for key, rows in by_key.items():
            for row in rows:
                if row.abort:
                    self._judge_aborted(row, opened.get(key))
                if row.abort == "ok":
                    self._judge_left(row, rows)

    def _judge_missed(
        self,
        reported: Sequence[DescribedTransactionRow],
        opened: dict[_Key, ClientTransaction],
        by_key: dict[_Key, list[DescribedTransactionRow]],
    ) -> None:
        checks = grouped(reported, partition_of)
        for key, transaction in opened.items():
            if transaction.row.error != NOT_ADDED:
                continue
            reports = by_key.get(key, [])
            reported_by = {(row.process, row.index) for row in reports}
            aborted_us = min((row.abort_us for row in reports if row.abort), default=None)
            for check in _checks_between(checks.get(key.where, []), transaction.row.at_us, aborted_us):
                if (check.process, check.index) not in reported_by:
                    self.violated(
                        check.received_us,
                        f"{check.process} got nothing of {transaction.named}, which hangs in "
                        f"{key.where[0]}-{key.where[1]} from offset {key.start_offset} on",
                    )

    def _judge_aborted(self, row: DescribedTransactionRow, transaction: ClientTransaction | None) -> None:
        if transaction is None or transaction.row.error == NOT_ADDED:
            return
        its = transaction.row
        is_same = its.producer_epoch == row.producer_epoch
        if is_same and its.from_us <= row.queried_us and row.received_us < min(its.at_us, its.from_us + its.timeout_us):
            self.violated(
                row.received_us,
                f"{row.process} found {transaction.named} hanging in {row.topic}-{row.partition} and aborted it, while "
                f"its producer had it open",
            )

    def _judge_left(self, row: DescribedTransactionRow, rows: Sequence[DescribedTransactionRow]) -> None:
        for later in rows:
            if later.queried_us >= row.abort_end_us:
                self.violated(
                    later.received_us,
                    f"{row.process} aborted the transaction of producer {row.producer_id} in {row.topic}-"
                    f"{row.partition} from offset {row.start_offset} on, and {later.process} got it as open",
                )


def _key(row: DescribedTransactionRow) -> _Key:
    return _Key(partition_of(row), row.producer_id, row.start_offset)


def _checks_between(
    rows: Sequence[DescribedTransactionRow], from_us: int, until_us: int | None
) -> Iterator[DescribedTransactionRow]:
    """Yield one row of each check that began at or after ``from_us`` and ended before ``until_us``."""
    seen = set[tuple[str, int]]()
    for row in rows:
        if (row.process, row.index) in seen or row.queried_us < from_us:
            continue
        if until_us is None or row.received_us < until_us:
            seen.add((row.process, row.index))
            yield row
