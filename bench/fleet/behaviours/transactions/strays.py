"""Strays leave transactions that hang: they write records of a transaction of which its coordinator never hears.

KIP-664 tells how such a transaction comes about: a partition has records of it, and no coordinator will ever send the
marker. Here a producer takes a transactional ID and writes, and nobody adds the partition (AddPartitionsToTxn). A
leader accepts that if it does not ask the coordinator: Produce 11 and older, ``transaction.version`` below 2, and
``transaction.partition.verification.enable`` false. Nothing but an admin's abort ends the transaction.

Each transaction has a transactional ID of its own, so nobody else ever fences its producer.
"""

from dataclasses import dataclass
from typing import Final, cast

from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.producers import NOT_COMPACTED, KeyedRecords
from bench.fleet.behaviours.protocol import Chance, ClientSettings, HistoryRow, Now, TopicPartition
from bench.fleet.behaviours.script import OpenLoop, Operation, Steps
from bench.fleet.values import ValueMaker
from reference_broker.client import group_requests
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.transactions.requests import (
    TRANSACTION_KEY_TYPE,
    ProducerIdentity,
    init_request,
    initialized,
)
from reference_broker.records.builder import build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, error_name
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from reports.rows import RunRow, TransactionRow

NOT_ADDED: Final = "not_added"
"""``TransactionRow.error`` of a stray's transaction."""
UNVERIFIED_VERSION: Final = 11
"""The newest version of Produce with which a client must add partitions by itself (KIP-890)."""
SETTLE_US: Final = 3_000_000
"""How long a stray goes on with its last transaction after Stopping."""
ALL_REPLICAS: Final = -1
REQUEST_WAIT_MS: Final = 1_000
NOBODY: Final = ProducerIdentity()


@dataclass(frozen=True, slots=True)
class StrayPlan:
    """A transaction with ``batch_records`` records in one of ``partitions`` begins every ``interval_us``. Its
    coordinator would abort it after ``timeout_us``, if it knew of it."""

    process: str
    partitions: tuple[TopicPartition, ...]
    interval_us: int
    batch_records: int = 3
    record_bytes: int = 100
    timeout_us: int = 1_000_000


@dataclass(slots=True)
class Stray:
    """One transaction. ``base_offset`` is -1 until the write is acknowledged."""

    operation: Operation
    where: TopicPartition
    transactional_id: str
    first_sequence: int
    from_us: int
    owner: ProducerIdentity = NOBODY
    batch: bytes = b""
    base_offset: int = -1


class StrayProducer(ClusterScript):
    """Ends after Stopping, once the write in flight is acknowledged or SETTLE_US are over."""

    def __init__(self, plan: StrayPlan, settings: ClientSettings, random: Chance) -> None:
        super().__init__(plan.process, settings, random, [each.topic for each in plan.partitions])
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
        """Returns what went wrong, or nothing."""
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
        asked = init_request(key, self.plan.timeout_us, NOBODY)
        answer = yield from self.call(ApiKey.INIT_PRODUCER_ID, self.settings.versions.init_producer_id, asked)
        if isinstance(answer, str):
            return answer
        owner = initialized(answer.body)
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
        """Returns what went wrong, or nothing. A batch that is sent again is written once."""
        leader = self.metadata.leader_of(current.where)
        if leader is None or not (yield from self.connect_to_node(leader)):
            return "refused"
        written = [ProducePartition(current.where.partition, current.batch)]
        topic = ProduceTopic(current.where.topic, NO_TOPIC_ID, written)
        body = ProduceRequest(ALL_REPLICAS, REQUEST_WAIT_MS, [topic], current.transactional_id)
        version = min(UNVERIFIED_VERSION, self.settings.versions.produce)
        answer = yield from self.call(ApiKey.PRODUCE, version, body, REQUEST_WAIT_MS * 1000)
        if isinstance(answer, str):
            return answer
        (told,) = [each for topic in cast(ProduceResponse, answer.body).responses for each in topic.partitions]
        if told.error_code != ErrorCode.none:
            return error_name(told.error_code)
        current.base_offset = told.base_offset
        return ""

    def _rows(self, current: Stray) -> list[HistoryRow]:
        """Nobody asks for an end, so the transaction was never committed."""
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
        run = RunRow(
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
        return [end, run]
