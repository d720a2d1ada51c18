"""Hanging transactions (KIP-664): producers that leave them, and janitors that find and abort them.

A transaction hangs if a partition has records of it and no coordinator will ever send the marker. A ``StrayProducer``
makes such transactions: it takes a transactional ID and writes, and the partition is never added (AddPartitionsToTxn).
A leader accepts that if it does not verify with the coordinator: Produce 11 and older, ``transaction.version`` below 2,
and ``transaction.partition.verification.enable`` false. Only an admin's abort ends the transaction. Each transaction
has a transactional ID of its own, so its producer is never fenced.

A ``Janitor`` searches for such transactions and aborts them, as an admin does with Kafka's ``kafka-transactions``. One
search has the steps of ``find-hanging``:

1. DescribeProducers returns, for each partition, the producers with an open transaction, its first offset, and the time
   of their last write. Recent writers are skipped.
2. ListTransactions on every node returns the transactional IDs of these producers.
3. DescribeTransactions returns the partitions in which the coordinator of such an ID still expects an end. A
   transaction that is open in any other partition hangs, and so does one whose producer has no transactional ID.

``abort`` sends WriteTxnMarkers to the partition's leader, with the producer's ID and epoch and with the newest
coordinator epoch that the partition knows of this producer.

A search is no snapshot: a transaction may end between two steps, and its coordinator may move. So a janitor aborts only
what it finds hanging in two searches in a row. A search that lacks a response is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, cast

from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kio.static.primitive import i8, i16, i32, i64

from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.producers import NOT_COMPACTED, KeyedRecords
from bench.fleet.behaviours.protocol import Chance, ClientSettings, HistoryRow, Now, TopicPartition
from bench.fleet.behaviours.script import OpenLoop, Operation, Steps
from bench.fleet.values import ValueMaker
from reference_broker.client import group_requests
from reference_broker.client.consumer_protocol import by_topic
from reference_broker.client.group_requests import error_of
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.transaction_requests import (
    TRANSACTION_KEY_TYPE,
    ProducerIdentity,
    init_request,
    initialized,
)
from reference_broker.records.record import build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode, error_name
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from reports.rows import DescribedTransactionRow, SpanRow, TransactionRow

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse
    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
    from kio.schema.list_transactions.v2.response import ListTransactionsResponse
    from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse


NOT_ADDED: Final = "not_added"
"""``TransactionRow.error`` of a stray's transaction."""
UNVERIFIED_VERSION: Final = 11
"""The newest version of Produce with which a client must add partitions by itself (KIP-890)."""
SETTLE_US: Final = 3_000_000
"""Time for which a stray continues its last transaction after Stopping."""
ALL_REPLICAS: Final = -1
REQUEST_WAIT_MS: Final = 1_000
NOBODY: Final = ProducerIdentity()


@dataclass(frozen=True, slots=True)
class StrayPlan:
    """The plan of one stray producer."""

    process: str
    partitions: tuple[TopicPartition, ...]
    interval_us: int  # between the beginnings of two transactions, each in one partition
    batch_records: int = 3
    record_bytes: int = 100
    timeout_us: int = 1_000_000  # after which the coordinator would abort it, if it had been added


@dataclass(slots=True)
class Stray:
    """One transaction."""

    operation: Operation
    where: TopicPartition
    transactional_id: str
    first_sequence: int
    from_us: int
    owner: ProducerIdentity = NOBODY
    batch: bytes = b""
    base_offset: int = -1  # until the write is acknowledged


class StrayProducer(ClusterScript):
    """Ends after Stopping, once the write in flight is acknowledged or SETTLE_US are over."""

    def __init__(self, plan: StrayPlan, settings: ClientSettings, random: Chance) -> None:
        super().__init__(plan.process, settings, random, [partition.topic for partition in plan.partitions])
        self.plan = plan
        values = ValueMaker(plan.process, plan.record_bytes)
        self.records = KeyedRecords(values, plan.partitions, 1, 0, NOT_COMPACTED)
        self.loop = OpenLoop(self, plan.interval_us, "transaction")
        self._current: Stray | None = None

    @property
    def gives_up(self) -> bool:
        return self.stopping_at_us is not None and self.now.mono_us - self.stopping_at_us >= SETTLE_US

    def run(self) -> Steps[None]:
        if (yield from self.find_leaders(self.plan.partitions)):
            yield from self.loop.run(self._leave_one)

    def close(self, now: Now) -> list[HistoryRow]:
        rows = super().close(now)
        return rows if self._current is None else [*rows, *self._rows(self._current)]

    def _leave_one(self, due_us: int) -> Steps[None]:
        number, plan = self.loop.slots - 1, self.plan
        current = self._current = Stray(
            self.journal.begin("transaction", due_us),
            plan.partitions[number % len(plan.partitions)],
            f"{plan.process}-{number}",
            number * plan.batch_records,
            self.now.mono_us,
        )
        error = "not_sent"
        while current.base_offset < 0 and not self.gives_up:
            error = yield from (self._write(current) if current.owner.is_known else self._take_id(current))
            if error:
                yield from self.back_off()
                yield from self.refresh()
        self.succeeded()
        self.journal.end(current.operation, "fail", error or NOT_ADDED, rows=tuple(self._rows(current)))
        self._current = None

    def _take_id(self, current: Stray) -> Steps[str]:
        """Return what went wrong, or nothing."""
        key = current.transactional_id
        body = group_requests.find_coordinator(key, TRANSACTION_KEY_TYPE)
        found = yield from self.call(ApiKey.FIND_COORDINATOR, self.settings.versions.find_coordinator, body)
        if isinstance(found, str):
            return found
        coordinator = group_requests.coordinator_of(found.body, key)
        if not isinstance(coordinator, NodeAddress):
            return error_name(int(coordinator))
        if not (yield from self.connect_to_node(coordinator)):
            return "refused"
        request = init_request(key, self.plan.timeout_us, NOBODY)
        response = yield from self.call(ApiKey.INIT_PRODUCER_ID, self.settings.versions.init_producer_id, request)
        if isinstance(response, str):
            return response
        owner = initialized(response.body)
        if not isinstance(owner, ProducerIdentity):
            return error_name(int(owner))
        plan, where = self.plan, current.where
        current.owner = owner
        current.batch = build(
            self.records.make(where, current.first_sequence, plan.batch_records, self.now.wall_ms),
            producer_id=owner.producer_id,
            producer_epoch=owner.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        return ""

    def _write(self, current: Stray) -> Steps[str]:
        """Return what went wrong, or nothing. A batch that is sent again is written once."""
        leader = self.metadata.leader_of(current.where)
        if leader is None or not (yield from self.connect_to_node(leader)):
            return "refused"
        written = [ProducePartition(current.where.partition, current.batch)]
        topic = ProduceTopic(current.where.topic, NO_TOPIC_ID, written)
        body = ProduceRequest(ALL_REPLICAS, REQUEST_WAIT_MS, [topic], current.transactional_id)
        version = min(UNVERIFIED_VERSION, self.settings.versions.produce)
        response = yield from self.call(ApiKey.PRODUCE, version, body, REQUEST_WAIT_MS * 1000)
        if isinstance(response, str):
            return response
        (found,) = [
            partition for topic in cast(ProduceResponse, response.body).responses for partition in topic.partitions
        ]
        if found.error_code != ErrorCode.none:
            return error_name(found.error_code)
        current.base_offset = found.base_offset
        return ""

    def _rows(self, current: Stray) -> list[HistoryRow]:
        """No end is requested, so the transaction was never committed."""
        if not current.owner.is_known:
            return []
        now_us, index, owner = self.now.mono_us, current.operation.index, current.owner
        end = TransactionRow(
            self.process,
            index,
            current.transactional_id,
            owner.producer_id,
            owner.epoch,
            "nothing",
            "failed",
            NOT_ADDED,
            self.plan.timeout_us,
            current.from_us,
            now_us,
            now_us,
        )
        span = SpanRow(
            self.process,
            index,
            0,
            "send",
            *current.where,
            current.base_offset,
            self.plan.batch_records,
            owner.producer_id,
            self.process,
            current.first_sequence,
            True,
            ALL_REPLICAS,
        )
        return [end, span]


FIRST_COORDINATOR_EPOCH: Final = 0
"""Kafka's tool takes this one where no coordinator has written a marker of the producer."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A producer with an open transaction, as a partition leader describes it."""

    where: TopicPartition  # the partition
    producer_id: int
    producer_epoch: int
    start_offset: int
    coordinator_epoch: int  # that of the producer's last marker there, or -1
    last_timestamp_ms: int


def describe_producers(partitions: Sequence[TopicPartition]) -> DescribeProducersRequest:
    topics = tuple(
        TopicRequest(name=TopicName(topic), partition_indexes=tuple(i32(number) for number in numbers))
        for topic, numbers in by_topic(partitions).items()
    )
    return DescribeProducersRequest(topics=topics)


def open_transactions(body: object) -> list[OpenTransaction] | Error | int:
    """Return what is open in the partitions of the response, or its first error."""
    found = []
    for topic in cast("DescribeProducersResponse", body).topics:
        for partition in topic.partitions:
            if error := error_of(partition.error_code):
                return error
            found += [
                OpenTransaction(
                    TopicPartition(str(topic.name), int(partition.partition_index)),
                    int(producer.producer_id),
                    int(producer.producer_epoch),
                    int(producer.current_txn_start_offset),
                    int(producer.coordinator_epoch),
                    int(producer.last_timestamp),
                )
                for producer in partition.active_producers
                if producer.current_txn_start_offset >= 0
            ]
    return found


def list_transactions(producer_ids: Sequence[int]) -> ListTransactionsRequest:
    return ListTransactionsRequest(
        state_filters=(),
        producer_id_filters=tuple(ProducerId(producer_id) for producer_id in producer_ids),
        duration_filter=i64(-1),
        transactional_id_pattern=None,
    )


def transactional_ids(body: object) -> dict[int, str] | Error | int:
    """Map producer IDs to the transactional IDs that the node coordinates. Return the error if there is one."""
    response = cast("ListTransactionsResponse", body)
    return error_of(response.error_code) or {
        int(state.producer_id): str(state.transactional_id) for state in response.transaction_states
    }


def describe_transaction(transactional_id: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=(TransactionalId(transactional_id),))


def expected_partitions(body: object) -> frozenset[TopicPartition] | Error | int:
    """Return the partitions in which the coordinator expects to end the only transaction of the response. Return the
    error if there is one."""
    (state,) = cast("DescribeTransactionsResponse", body).transaction_states
    return error_of(state.error_code) or frozenset(
        TopicPartition(str(topic.topic), int(partition)) for topic in state.topics for partition in topic.partitions
    )


def abort_request(transaction: OpenTransaction) -> WriteTxnMarkersRequest:
    marker = WritableTxnMarker(
        producer_id=ProducerId(transaction.producer_id),
        producer_epoch=i16(transaction.producer_epoch),
        transaction_result=False,
        topics=(
            WritableTxnMarkerTopic(
                name=TopicName(transaction.where.topic), partition_indexes=(i32(transaction.where.partition),)
            ),
        ),
        coordinator_epoch=i32(max(transaction.coordinator_epoch, FIRST_COORDINATOR_EPOCH)),
        transaction_version=i8(0),
    )
    return WriteTxnMarkersRequest(markers=(marker,))


def abort_error(body: object) -> Error | int:
    """The error of the only partition in the response."""
    (error,) = [
        error_of(partition.error_code)
        for marker in cast("WriteTxnMarkersResponse", body).markers
        for topic in marker.topics
        for partition in topic.partitions
    ]
    return error


T = TypeVar("T")
FIND_HANGING: Final = "find_hanging"
OLDEST_VERSION: Final = 0
MARKERS_VERSION: Final = 1
"""Version 0 is gone with Kafka 4."""
MARKERS_WAIT_US: Final = 1_000_000
NOTHING, YOUNG, KNOWN, HANGING = "nothing", "young", "known", "hanging"
UNKNOWN: Final = "unknown"
ALL_SETTLED_US: Final = SETTLE_US + 2_000_000
"""Time from Stopping after which a look sees all that strays have left."""


@dataclass(frozen=True, slots=True)
class JanitorPlan:
    """The plan of one janitor."""

    process: str
    partitions: tuple[TopicPartition, ...]
    interval_us: int  # between the beginnings of two searches of all partitions
    older_than_ms: int  # a transaction whose producer wrote more recently is skipped


@dataclass(slots=True)
class HangingSearch:
    """The findings of one search so far."""

    operation: Operation
    received_us: int = -1  # when the last response had come
    queried_us: dict[TopicPartition, int] = field(default_factory=dict)  # when the leader of each partition was queried
    open: list[OpenTransaction] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)  # transactional IDs by producer ID
    expected: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    """The partitions in which the coordinator of each transactional ID still expects an end."""


class SearchFailed(Exception):  # noqa: N818 - names what happened
    """A step got no response, or an error. The message is its name."""


class Janitor(ClusterScript):
    """Ends after Stopping, with the first search that finds nothing open once all strays have settled."""

    def __init__(self, plan: JanitorPlan, settings: ClientSettings, random: Chance) -> None:
        super().__init__(plan.process, settings, random, [partition.topic for partition in plan.partitions])
        self.plan = plan
        self._suspects: frozenset[OpenTransaction] = frozenset()

    def run(self) -> Steps[None]:
        if not (yield from self.find_leaders(self.plan.partitions)):
            return
        due_us, is_clean = self.first_due_us(self.plan.interval_us), False
        while not (self.out_of_time or (is_clean and self._all_settled)):
            if self.now.mono_us < due_us:
                yield from self.sleep_until(due_us)
                continue
            began_settled = self._all_settled
            found = yield from self._search(min(due_us, self.now.mono_us))
            is_clean = found is not None and not found.open and began_settled
            due_us = max(due_us + self.plan.interval_us, self.now.mono_us)

    @property
    def _all_settled(self) -> bool:
        return self.stopping_at_us is not None and self.now.mono_us - self.stopping_at_us >= ALL_SETTLED_US

    def _search(self, due_us: int) -> Steps[HangingSearch | None]:
        """Search once, and abort what hangs. Return None if a step failed."""
        search = HangingSearch(self.journal.begin(FIND_HANGING, due_us))
        try:
            # A former leader that follows describes its producers, too, but accepts no markers.
            if not (yield from self.refresh()):
                raise SearchFailed("no_metadata")
            yield from self._describe_partitions(search)
            old = [transaction for transaction in search.open if self._is_old(transaction)]
            yield from self._find_ids(search, old)
            yield from self._describe_ids(search)
            search.received_us = self.now.mono_us
        except SearchFailed as failed:
            self.journal.end(search.operation, "fail", str(failed))
            self._suspects = frozenset()
            self.disconnect()
            yield from self.back_off()
            return None
        rows = {transaction: self._row(search, transaction) for transaction in search.open}
        hanging = frozenset(transaction for transaction in search.open if rows[transaction].found == HANGING)
        for transaction in search.open:
            if transaction in hanging & self._suspects:
                row = rows[transaction]
                row.abort_us = self.now.mono_us
                row.abort = yield from self._abort(transaction)
                row.abort_end_us = self.now.mono_us
        self._suspects = hanging
        self.journal.end(search.operation, "ok", rows=(*rows.values(), *self._rows_of_quiet(search)))
        self.succeeded()
        return search

    def _is_old(self, transaction: OpenTransaction) -> bool:
        return self.now.wall_ms - transaction.last_timestamp_ms >= self.plan.older_than_ms

    def _found(self, search: HangingSearch, transaction: OpenTransaction) -> str:
        if not self._is_old(transaction):
            return YOUNG
        return (
            KNOWN
            if transaction.where in search.expected.get(search.ids.get(transaction.producer_id, ""), ())
            else HANGING
        )

    # -- the steps of a search ------------------------------------------------------------------------------------

    def _describe_partitions(self, search: HangingSearch) -> Steps[None]:
        by_leader: dict[NodeAddress, list[TopicPartition]] = {}
        for partition in self.plan.partitions:
            leader = self.metadata.leader_of(partition)
            if leader is None:
                raise SearchFailed("no_leader")
            by_leader.setdefault(leader, []).append(partition)
        for leader, wanted in by_leader.items():
            queried_us = self.now.mono_us
            body = yield from self._query(leader, ApiKey.DESCRIBE_PRODUCERS, describe_producers(wanted))
            search.queried_us |= dict.fromkeys(wanted, queried_us)
            search.open += _without_error(open_transactions(body))

    def _find_ids(self, search: HangingSearch, old: Sequence[OpenTransaction]) -> Steps[None]:
        wanted = sorted({transaction.producer_id for transaction in old})
        if wanted:
            for node in [self.metadata.nodes[each] for each in sorted(self.metadata.nodes)]:
                body = yield from self._query(node, ApiKey.LIST_TRANSACTIONS, list_transactions(wanted))
                search.ids |= _without_error(transactional_ids(body))

    def _describe_ids(self, search: HangingSearch) -> Steps[None]:
        for each in search.ids.values():
            found = yield from self._call(
                ApiKey.FIND_COORDINATOR,
                self.settings.versions.find_coordinator,
                group_requests.find_coordinator(each, TRANSACTION_KEY_TYPE),
            )
            coordinator = _without_error(group_requests.coordinator_of(found, each))
            body = yield from self._query(coordinator, ApiKey.DESCRIBE_TRANSACTIONS, describe_transaction(each))
            search.expected[each] = _without_error(expected_partitions(body))

    def _abort(self, transaction: OpenTransaction) -> Steps[str]:
        """Return ``ok``, Kafka's error name, or ``unknown``."""
        leader = self.metadata.leader_of(transaction.where)
        if leader is None or not (yield from self.connect_to_node(leader)):
            return UNKNOWN
        body = abort_request(transaction)
        response = yield from self.call(ApiKey.WRITE_TXN_MARKERS, MARKERS_VERSION, body, MARKERS_WAIT_US)
        if isinstance(response, str):
            return UNKNOWN
        error = abort_error(response.body)
        return "ok" if error == ErrorCode.none else error_name(int(error))

    def _query(self, node: NodeAddress, api_key: ApiKey, body: object) -> Steps[object]:
        if not (yield from self.connect_to_node(node)):
            raise SearchFailed("refused")
        return (yield from self._call(api_key, OLDEST_VERSION, body))

    def _call(self, api_key: ApiKey, version: int, body: object) -> Steps[object]:
        response = yield from self.call(api_key, version, body)
        if isinstance(response, str):
            raise SearchFailed(response)
        return response.body

    # -- what is recorded ---------------------------------------------------------------------------------------

    def _row(self, search: HangingSearch, transaction: OpenTransaction) -> DescribedTransactionRow:
        return DescribedTransactionRow(
            self.process,
            search.operation.index,
            transaction.where.topic,
            transaction.where.partition,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.start_offset,
            search.ids.get(transaction.producer_id, ""),
            self._found(search, transaction),
            search.queried_us[transaction.where],
            search.received_us,
            "",
            search.received_us,
            search.received_us,
        )

    def _rows_of_quiet(self, search: HangingSearch) -> list[DescribedTransactionRow]:
        """Rows of the partitions in which nothing is open."""
        busy, received_us, index = (
            {transaction.where for transaction in search.open},
            search.received_us,
            search.operation.index,
        )
        return [
            DescribedTransactionRow(
                self.process,
                index,
                *partition,
                -1,
                -1,
                -1,
                "",
                NOTHING,
                queried_us,
                received_us,
                "",
                received_us,
                received_us,
            )
            for partition, queried_us in search.queried_us.items()
            if partition not in busy
        ]


def _without_error(result: T | Error | int) -> T:
    """Return what was found. Raise SearchFailed if it is an error."""
    if isinstance(result, int):
        raise SearchFailed(error_name(int(result)))
    return result
