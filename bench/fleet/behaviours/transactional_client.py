"""A fleet client with a transactional producer: it begins transactions, ends them by its habits, and records each.

``TransactionalProducer`` of the reference client decides everything about the protocol. The rest is in subclasses: when
a transaction is due, what it sends, and what follows from its end. ``TransactionalWriter`` sends records to a few
partitions, and then commits, aborts on purpose, or dies. Workers are in ``transactional_worker.py``.

Each transaction is one operation. It is ok if its commit is known, fail if the commit was never requested or has
failed, and info if the result is unknown. A client that dies inside leaves its transaction open. Its next life has the
same transactional ID, so the open one is aborted then at the latest. Half of the deaths are between two transactions. A
client that is dead when the load ends comes back at once, unless its habit is to stay away: then its coordinator must
abort.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from bench.fleet.behaviours.client_channels import ChannelHistory, ProducerChannels
from bench.fleet.behaviours.journal import Journal, Operation
from bench.fleet.behaviours.producers import NOT_COMPACTED, KeyedRecords
from bench.fleet.behaviours.protocol import (
    Chance,
    ClientSettings,
    Finished,
    FleetAction,
    FleetEvent,
    HistoryRow,
    Leaving,
    Now,
    Started,
    Stopping,
    TopicPartition,
    Wake,
)
from bench.fleet.values import ValueMaker
from reference_broker.client.group_requests import name_of
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.transaction_manager import Outcome, State, TransactionConfig
from reference_broker.client.transaction_requests import ProducerIdentity
from reference_broker.client.transactional_producer import Delivery, ProducerConfig, TransactionalProducer
from reference_broker.records.record import Record
from reference_broker.wire.apis import ApiKey
from reports.rows import SpanRow, TransactionRow

TIMER_CHANNEL: Final = 0
OPERATION: Final = "transaction"
COMMIT, ABORT, NOTHING = "commit", "abort", "nothing"
AWAY_US: Final = 300_000
"""Time for which a client waits before it retries after its producer was refused for good."""
SOON_US: Final = 1_000
IDLE_US: Final = 100_000
"""A client looks around after SOON_US at the earliest and after IDLE_US at the latest."""


@dataclass(frozen=True, slots=True)
class ProducerHabits:
    """Behaviour of a transactional client."""

    process: str
    topics: tuple[str, ...]
    timeout_us: int
    abort_percent: int = 0
    die_percent: int = 0
    away_us: int = 2_000_000  # longest time until a client that died comes back
    comes_back: bool = True
    delivery_timeout_us: int = 30_000_000
    request_wait_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Sent:
    """Consecutive values of this client in one partition."""

    delivery: Delivery
    first_sequence: int  # number of the first value


@dataclass(slots=True)
class Open:
    """A transaction whose end is not recorded yet."""

    operation: Operation
    identity: ProducerIdentity
    wants: str  # how the client means to end it
    from_us: int
    sent: list[Sent] = field(default_factory=list)
    rows: list[HistoryRow] = field(default_factory=list)  # further history rows of the transaction
    requested: str = NOTHING  # the end that it has requested
    requested_us: int = -1
    is_end_sent: bool = False
    outcome: Outcome | None = None  # what it knows of the requested end
    error: str | None = None

    @property
    def kind(self) -> str:
        """The type of its operation."""
        if self.requested != COMMIT or self.outcome is Outcome.FAILED:
            return "fail"
        return "ok" if self.outcome is Outcome.OK else "info"


@dataclass(slots=True)
class ProducerLife:
    """One producer from its start to its end."""

    producer: TransactionalProducer
    channels: ProducerChannels
    current: Open | None = None
    is_fresh: bool = True  # until its first transaction begins


class TransactionalClient(ABC):
    """Ends after Stopping once nothing is left to do. Before that it takes its transactional ID once more: a producer
    gets it only when the last transaction has its markers, so the logs no longer change when all clients have ended."""

    def __init__(self, habits: ProducerHabits, settings: ClientSettings, random: Chance) -> None:
        self.habits = habits
        self.settings = settings
        self.random = random
        self.journal = Journal(habits.process)
        self._channel_numbers = count(TIMER_CHANNEL + 1)
        self._life: ProducerLife | None = None
        self._back_at_us = 0
        self._stopping_at_us = -1
        self._woken_at_us = 0
        self._may_lack_markers = False
        self._is_gone = False
        self._finished = False

    # -- what a subclass decides --------------------------------------------------------------------------------

    @abstractmethod
    def due_at_us(self) -> int | None:
        """The time at which the next transaction begins. None: something else must happen before."""

    @abstractmethod
    def fill(self, producer: TransactionalProducer, current: Open) -> None:
        """Send what belongs to the transaction, which has just begun."""

    @property
    @abstractmethod
    def has_more(self) -> bool:
        """Whether more transactions must follow after Stopping."""

    @abstractmethod
    def ended(self, current: Open) -> None:
        """Called when the transaction has ended, with this ``kind``."""

    # -- what a driver calls ------------------------------------------------------------------------------------

    @property
    def process(self) -> str:
        return self.habits.process

    @property
    def now_us(self) -> int:
        return self.journal.now.mono_us

    @property
    def is_stopping(self) -> bool:
        return self._stopping_at_us >= 0

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        self.journal.now = now
        if self._finished:
            return []
        if isinstance(event, Started):
            self._back_at_us = self.now_us
        elif isinstance(event, Stopping | Leaving):
            self._stopping_at_us = self.now_us
        elif self._life is not None:
            self._life.channels.handle(event)
        self._go_on()
        return self.journal.take_actions()

    def close(self, now: Now) -> list[HistoryRow]:
        """End at once. What is open ends as far as it can be known."""
        self.journal.now, self._finished = now, True
        rows: list[HistoryRow] = []
        if self._life is not None and self._life.current is not None:
            rows = self._rows_if_given_up(self._life, "unfinished")
        return [*self.journal.end_all("unfinished"), *rows]

    # -- lives --------------------------------------------------------------------------------------------------

    def _begin(self) -> ProducerLife:
        settings, habits = self.settings, self.habits
        versions = settings.versions
        transaction = TransactionConfig(
            habits.process, habits.timeout_us, settings.backoff_us, settings.request_timeout_us
        )
        config = ProducerConfig(
            tuple(NodeAddress(number, each.host, each.port) for number, each in enumerate(settings.bootstrap)),
            transaction,
            delivery_timeout_us=habits.delivery_timeout_us,
            request_timeout_us=settings.request_timeout_us + habits.request_wait_ms * 1000,
            replicas_timeout_ms=habits.request_wait_ms,
            backoff_us=settings.backoff_us,
            metadata_version=versions.metadata,
        )
        producer = TransactionalProducer(config)
        for topic in habits.topics:
            producer.look_up(topic)
        return ProducerLife(
            producer, ProducerChannels(producer, ChannelHistory(), self.journal, settings, self._channel_numbers)
        )

    def _die(self) -> None:
        self._is_gone = not self.habits.comes_back
        self._end_life(1 + self.random.randrange(self.habits.away_us))

    def _end_life(self, away_us: int) -> None:
        assert self._life is not None, "nobody lives"
        self._life.channels.close()
        self._life = None
        self._back_at_us = self.now_us + away_us

    def _go_on(self) -> None:
        """Do all that can be done now, and set the time to look around again."""
        if self._life is None and not (self._is_done or self._is_gone) and self._is_back:
            self._life = self._begin()
        if self._life is not None:
            self._live(self._life)
        if self._is_late or (self._life is None and self._is_done):
            self._finish()
        else:
            self._wake()

    @property
    def _is_back(self) -> bool:
        return self.is_stopping or self.now_us >= self._back_at_us

    @property
    def _is_done(self) -> bool:
        return self.is_stopping and (self._is_gone or not (self.has_more or self._may_lack_markers))

    @property
    def _is_late(self) -> bool:
        return self.is_stopping and self.now_us - self._stopping_at_us >= self.settings.drain_us

    def _finish(self) -> None:
        self._finished = True
        life = self._life
        if life is not None:
            current = life.current
            if current is not None:
                rows = self._rows_if_given_up(life, "timeout")
                self.journal.end(current.operation, current.kind, current.error, rows=tuple(rows))
            self._end_life(0)
        self.journal.actions.append(Finished())

    def _live(self, life: ProducerLife) -> None:
        """Work until nothing is left to do without waiting."""
        going = True
        while going:
            going = self._advance(life)
            if self._life is not life:
                return
            for channel, request in life.producer.next_requests(self.now_us):
                if request.api_key == ApiKey.END_TXN and life.current is not None and not life.current.is_end_sent:
                    # A commit waits for the responses to the records. Until then it is not sent to the coordinator.
                    life.current.requested_us, life.current.is_end_sent = self.now_us, True
                life.channels.send(channel, request)

    def _advance(self, life: ProducerLife) -> bool:
        """Take the next step, and return whether it may allow another one at once."""
        producer, current, state = life.producer, life.current, life.producer.state
        if state is State.UNINITIALIZED:
            producer.init()
        elif state is State.FATAL_ERROR:
            self._note_error(life)
            self._record_end(life, producer.outcome or Outcome.FAILED)
            self._end_life(AWAY_US + self.random.randrange(AWAY_US))
            return False
        elif state is State.ABORTABLE_ERROR:
            self._note_error(life)
            if current is not None:
                current.outcome = producer.outcome or Outcome.FAILED
            producer.abort()
        elif state is State.IN_TRANSACTION:
            assert current is not None, "a transaction that was not begun"
            return self._end_as_wanted(life, current)
        elif state in (State.READY, State.INITIALIZING) and current is not None:
            self._record_end(life, producer.outcome or Outcome.FAILED)
        elif state is State.READY:
            return self._begin_next(life)
        else:
            return False
        return True

    def _begin_next(self, life: ProducerLife) -> bool:
        if life.is_fresh:
            self._may_lack_markers = False
        if self.is_stopping and not self.has_more:
            self._end_life(0)
            return False
        due_us = self.due_at_us()
        if due_us is None or self.now_us < due_us:
            return False
        drawn = self.random.randrange(100)
        wants = ABORT if drawn < self.habits.abort_percent else COMMIT
        if wants == COMMIT and drawn < self.habits.abort_percent + self.habits.die_percent and not self.is_stopping:
            wants = NOTHING
            if self.random.randrange(2):
                self._die()
                return False
        producer = life.producer
        producer.begin()
        operation = self.journal.begin(OPERATION, due_us)
        life.current = Open(operation, producer.transactions.identity, wants, self.now_us)
        life.is_fresh, self._may_lack_markers = False, True
        self.fill(producer, life.current)
        return True

    def _end_as_wanted(self, life: ProducerLife, current: Open) -> bool:
        """A commit waits for records and offsets by itself. Others wait until these are in the logs."""
        producer = life.producer
        if current.wants != COMMIT and (not producer.is_flushed or producer.transactions.sends_offsets):
            return False
        if current.wants == NOTHING:
            current.error = "died"
            self._record_end(life, Outcome.FAILED)
            self._die()
            return False
        current.requested, current.requested_us = current.wants, self.now_us
        if current.wants == COMMIT:
            life.producer.commit()
        else:
            current.error = "aborted"
            life.producer.abort()
        return True

    # -- what is recorded ---------------------------------------------------------------------------------------

    def _note_error(self, life: ProducerLife) -> None:
        if life.current is not None and life.producer.error is not None:
            life.current.error = name_of(life.producer.error.error)

    def _record_end(self, life: ProducerLife, outcome: Outcome) -> None:
        """Record the end of the transaction, if there is one. An error before the end has already given its
        outcome."""
        current, life.current = life.current, None
        if current is None:
            return
        current.outcome = current.outcome or outcome
        self.journal.end(current.operation, current.kind, current.error, rows=tuple(self._rows(current)))
        self.ended(current)

    def _rows_if_given_up(self, life: ProducerLife, error: str) -> list[HistoryRow]:
        current = life.current
        assert current is not None, "nothing is open"
        current.outcome = current.outcome or life.producer.outcome or life.producer.transactions.outcome_if_given_up
        current.error = current.error or error
        return self._rows(current)

    def _rows(self, current: Open) -> list[HistoryRow]:
        index, identity = current.operation.index, current.identity
        assert current.outcome is not None, "an end without an outcome"
        end = TransactionRow(
            self.process,
            index,
            self.habits.process,
            identity.producer_id,
            identity.epoch,
            current.requested,
            current.outcome.value,
            current.error,
            self.habits.timeout_us,
            current.from_us,
            current.requested_us if current.requested_us >= 0 else self.now_us,
            self.now_us,
        )
        spans = [
            SpanRow(
                self.process,
                index,
                position,
                "send",
                *each.delivery.where,
                each.delivery.base_offset,
                len(each.delivery.records),
                identity.producer_id,
                self.process,
                each.first_sequence,
                True,
                -1,
            )
            for position, each in enumerate(current.sent)
        ]
        return [end, *spans, *current.rows]

    def send(
        self,
        producer: TransactionalProducer,
        current: Open,
        partition: TopicPartition,
        records: list[Record],
        first: int,
    ) -> None:
        """Send values from number ``first`` on as part of the transaction."""
        current.sent.append(Sent(producer.send(self.now_us, partition, records), first))

    # -- time ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        due = [self.now_us + IDLE_US]
        if self._life is None:
            due += [] if self._is_gone else [self._back_at_us]
        else:
            producer = self._life.producer
            wake_us = producer.wake_at_us
            due += [] if wake_us is None else [wake_us]
            # Until the producer is ready, only a response can let the next transaction begin.
            may_begin = self._life.current is None and producer.state is State.READY
            begins_us = self.due_at_us() if may_begin else None
            due += [] if begins_us is None else [begins_us]
        at_us = max(min(due), self.now_us + SOON_US)
        if not self.now_us < self._woken_at_us <= at_us:
            self._woken_at_us = at_us
            self.journal.actions.append(Wake(at_us, TIMER_CHANNEL))


@dataclass(frozen=True, slots=True)
class WriterPlan:
    """The plan of one transactional writer."""

    habits: ProducerHabits
    partitions: tuple[TopicPartition, ...]
    interval_us: int  # time between the beginnings of transactions, unless the one before takes longer
    partitions_at_once: int = 2  # number of partitions in a transaction, in turn
    records_per_partition: int = 5
    record_bytes: int = 100
    keys: int = 16  # this field and those after it are as in ``KeyedRecords``
    delete_percent: int = 0
    delete_retention_us: int = NOT_COMPACTED


class TransactionalWriter(TransactionalClient):
    """Begins no more transactions after Stopping."""

    def __init__(self, plan: WriterPlan, settings: ClientSettings, random: Chance) -> None:
        super().__init__(plan.habits, settings, random)
        self.plan = plan
        values = ValueMaker(plan.habits.process, plan.record_bytes)
        self.records = KeyedRecords(values, plan.partitions, plan.keys, plan.delete_percent, plan.delete_retention_us)
        self.next_sequence = 0
        self._next_partition = 0
        self._due_us = -1

    def due_at_us(self) -> int:
        if self._due_us < 0:
            self._due_us = self.now_us + self.random.randrange(self.plan.interval_us)
        return self._due_us

    @property
    def has_more(self) -> bool:
        return self._life is not None and self._life.current is not None

    def fill(self, producer: TransactionalProducer, current: Open) -> None:
        plan = self.plan
        self._due_us = max(self.due_at_us() + plan.interval_us, self.now_us)
        for _ in range(plan.partitions_at_once):
            partition = plan.partitions[self._next_partition % len(plan.partitions)]
            self._next_partition += 1
            first, count = self.next_sequence, plan.records_per_partition
            self.next_sequence += count
            records = self.records.make(partition, first, count, self.journal.now.wall_ms)
            self.send(producer, current, partition, records, first)
            current.rows += self.records.rows(self.process, current.operation.index, partition, first, count)

    def ended(self, current: Open) -> None:
        """Values are never sent again, whatever has become of them."""
