"""The transaction coordinator: its transactional IDs, its timeouts, and hanging transactions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from chaos.checks.check import Check, CheckContext, StateCheck
from chaos.checks.history import History, TopicPartition, grouped, partition_of
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.transaction_state import FIRST_VALUE, StatePartition, StateValue, wrong_step
from chaos.checks.transactions import Transaction, transactions
from reference_broker.core.events import Effect, Event, Reply, Request
from reports.rows import ToldTransactionRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 22, 24, 25, 26, 28
STATE_TOPIC = "__transaction_state"
LARGE_EPOCH = 30_000
"""A producer ID has 32,767 epochs. Where it may have used them up, the next producer gets a new one (X-1)."""
SLACK_MS = 1_500
"""Physical: markers, and then the records of the end and of the tombstone, are replicated first."""

_Led: TypeAlias = tuple[tuple[int, int], ...]
"""The partitions of STATE_TOPIC that a node leads, each with its leader epoch."""


@dataclass(slots=True)
class _Moment:
    """By the node's wall clock, by which IDs expire, and by the run's clock, which no fault sets."""

    wall_ms: int
    at_us: int

    def ages_ms(self, now: "_Moment") -> tuple[int, int]:
        return now.wall_ms - self.wall_ms, (now.at_us - self.at_us) // 1000


@dataclass(slots=True)
class _Known:
    """A transactional ID's last producer."""

    led: _Led
    """partitions of the state topic that the node led then"""
    producer_id: int
    epoch: int
    timeout_ms: int
    requested: _Moment
    """time of the last InitProducerId or EndTxn that succeeded"""
    named: _Moment
    """last time at which any request named the ID"""


class TransactionalIdsKept(Check):
    """transactional-ids-kept: a coordinator grants no timeout that is too long, and expires idle IDs in time, not
    earlier.

    X-7: InitProducerId with a timeout beyond ``transaction.max.timeout.ms`` is rejected. X-10: an ID that was idle for
    ``transactional.id.expiration.ms`` expires at the next check, which comes every
    ``transaction.remove.expired.transaction.cleanup.interval.ms``. The next producer with that ID gets a new producer
    ID. Before, it gets the same producer ID with another epoch.

    The check knows an ID from the requests that name it, as long as the same node leads the same partitions of
    ``__transaction_state``. An open transaction ends after its timeout at the latest, so an ID is idle from then on.
    """

    guarantee = "transactional-ids-kept"
    needs_one_node = True
    acts_on = (PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._known: dict[tuple[int, str], _Known] = {}
        """by node and transactional ID"""
        self._pending = PendingRequests[tuple[Any, _Moment]]()

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id, now = node.broker.node_id, _Moment(node.broker.now.wall_ms, at_us)
        if event is None:
            self._known = {key: known for key, known in self._known.items() if key[0] != node_id}
            self._pending.restarted(node_id)
        elif type(event) is Request:
            if event.api_key in (INIT_PRODUCER_ID, END_TXN):
                self._pending.add(node_id, event, (event.body, now))
            else:
                self._named(node_id, event.body, now)
        for effect in effects:
            if type(effect) is Reply and effect.api_key in (INIT_PRODUCER_ID, END_TXN):
                requested = self._pending.pop(node_id, effect)
                if requested is not None and requested[0].transactional_id is not None:
                    self._judge(node, requested[0], effect, requested[1], now)

    def _named(self, node_id: int, body: Any, now: _Moment) -> None:
        for transactional_id in _ids_in(body):
            known = self._known.get((node_id, transactional_id))
            if known is not None:
                known.named = now

    def _judge(self, node: "Node", body: Any, reply: Reply, requested: _Moment, now: _Moment) -> None:
        response: Any = reply.body
        key = node.broker.node_id, str(body.transactional_id)
        known = self._known.get(key)
        if known is not None:
            if known.led != _led(node):
                known = None
                del self._known[key]
            elif response.error_code != 0 or reply.api_key == END_TXN:
                known.named = now
        if response.error_code != 0:
            return
        if reply.api_key == END_TXN:
            if known is not None:
                known.requested = requested
            return
        config, timeout_ms = node.broker.config, body.transaction_timeout.total_seconds() * 1000
        if timeout_ms > config.transaction_max_timeout_ms:
            self.violated(now.at_us, f"{key[1]} was granted a timeout of {timeout_ms:.0f} ms")
        taken = int(response.producer_id), int(response.producer_epoch)
        if known is not None:
            self._judge_age(node, key[1], known, taken[0], requested)
        self._known[key] = _Known(_led(node), *taken, int(timeout_ms), requested, now)

    def _judge_age(
        self, node: "Node", transactional_id: str, known: _Known, producer_id: int, requested: _Moment
    ) -> None:
        self.evidence += 1
        config, is_same = node.broker.config, producer_id == known.producer_id
        who = f"{transactional_id} (producer ID {known.producer_id})"
        idle_ms, busy_ms = min(known.named.ages_ms(requested)), max(known.requested.ages_ms(requested))
        least_ms = config.transactional_id_expiration_ms
        most_ms = (
            *(known.timeout_ms, config.transaction_abort_timed_out_transaction_cleanup_interval_ms, least_ms),
            *(config.transaction_remove_expired_transaction_cleanup_interval_ms, SLACK_MS),
        )
        if is_same and idle_ms > sum(most_ms) and not self._is_troubled_since(known.named.at_us):
            self.violated(requested.at_us, f"{who} was not forgotten in {idle_ms} ms, {sum(most_ms)} ms are the most")
        elif not is_same and 0 <= busy_ms < least_ms and known.epoch < LARGE_EPOCH:
            self.violated(requested.at_us, f"{who} was forgotten after {busy_ms} ms, {least_ms} ms are the least")

    def _is_troubled_since(self, since_us: int) -> bool:
        """Physical: a node that is paused, or reaches no other to replicate the end or the tombstone, forgets later."""
        fault_times = self.context.quorum.fault_times
        return any(until_us >= since_us for until_us in (*fault_times.nodes.values(), *fault_times.links.values()))


def _ids_in(body: Any) -> Iterator[str]:
    """Yield the transactional IDs that a request names."""
    own = getattr(body, "transactional_id", None)
    if own:
        yield str(own)
    for each in getattr(body, "transactions", ()):
        yield str(each.transactional_id)


def _led(node: "Node") -> _Led:
    partitions = node.broker.partitions.by_name.items()
    return tuple((index, each.leader_epoch) for (topic, index), each in partitions if topic == STATE_TOPIC)


class TransactionsConsistent(Check):
    """transactions-consistent: a coordinator's state of its transactional IDs does not contradict itself.

    Validates the coordinator itself after each event (``TransactionCoordinator.validate``).

    The judged code is its own judge here. That can hide no violation from clients, because it only adds to the checks
    of clients' observations.
    """

    guarantee = "transactions-consistent"

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        try:
            node.broker.transactions.validate()
        except AssertionError as wrong:
            self.violated(at_us, f"node {node.broker.node_id}: {wrong}")


class TransactionSteps(StateCheck):
    """transactions-consistent (X-1, X-2, X-3, X-9): the committed values of a transactional ID follow on each other by
    Kafka's transitions.

    Read from its bytes: the states, the producer ID and epoch of the owner, the partitions, the start and the timeout.
    A producer ID belongs to one transactional ID. After a loss of committed values (E-7) the next one is not compared.
    """

    guarantee = "transactions-consistent"

    def value_committed(
        self, at_us: int, node: "Node", partition: StatePartition, before: StateValue | None, value: StateValue
    ) -> None:
        self.evidence += 1
        owner = self.transactions.owners.get(value.producer_id)
        if owner is not None and owner[1] != value.transactional_id and not self.transactions.losses:
            self.violated(
                at_us,
                f"{value.transactional_id}: {value.named} has the producer ID of {owner[1]} (X-1)",
            )
        if before is None and (self.transactions.losses or partition.log is None or partition.log.cleaned_offset > 0):
            return
        wrong = wrong_step(before or FIRST_VALUE, value)
        if wrong:
            self.violated(
                at_us,
                f"{value.transactional_id}: node {node.broker.node_id} replicated {value.named}, after "
                f"{'nothing' if before is None else before.named}: {wrong}",
            )


CLEANUP_US = 10_000_000
"""Kafka's default of that interval."""


class HangingTransaction(Check):
    """hanging-transaction: once all is quiet, no transaction holds back the last stable offset that should have ended.

    A coordinator aborts a transaction that is older than its timeout, and checks for that every
    ``transaction.abort.timed.out.transaction.cleanup.interval.ms``. Until then a transaction whose end was not
    acknowledged may be open.
    """

    guarantee = "hanging-transaction"

    def end(self, history: History) -> None:
        self.evidence += len(history.transactions)
        for end in history.ends:
            if not 0 <= end.last_stable_offset < end.high_watermark:
                continue
            may_be_open = any(
                each.row.outcome != "ok" and each.row.at_us + each.row.timeout_us + CLEANUP_US >= end.end_us
                for each in transactions(history)
            )
            if not may_be_open:
                self.violated(
                    end.end_us,
                    f"{end.topic}-{end.partition}: the last stable offset is at {end.last_stable_offset}, the high "
                    f"watermark at {end.high_watermark}, and no transaction may be open",
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

    A leader that was replaced and does not know it may report an old state. So a scenario in which nodes are cut off or
    paused does not have this guarantee.
    """

    guarantee = "hanging-found"

    def end(self, history: History) -> None:
        reported = history.told_transactions
        self.evidence += len(reported)
        opened = {
            _Key(partition_of(span), span.producer_id, span.first_offset): each
            for each in transactions(history)
            for span in each.sent
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
        reported: Sequence[ToldTransactionRow],
        opened: dict[_Key, Transaction],
        by_key: dict[_Key, list[ToldTransactionRow]],
    ) -> None:
        looks = grouped(reported, partition_of)
        for key, transaction in opened.items():
            if transaction.row.error != NOT_ADDED:
                continue
            named = by_key.get(key, [])
            found = {(row.process, row.index) for row in named}
            aborted_us = min((row.abort_us for row in named if row.abort), default=None)
            for look in _looks_between(looks.get(key.where, []), transaction.row.at_us, aborted_us):
                if (look.process, look.index) not in found:
                    self.violated(
                        look.told_us,
                        f"{look.process} got nothing of {transaction.named}, which hangs in "
                        f"{key.where[0]}-{key.where[1]} from offset {key.start_offset} on",
                    )

    def _judge_aborted(self, row: ToldTransactionRow, transaction: Transaction | None) -> None:
        if transaction is None or transaction.row.error == NOT_ADDED:
            return
        its = transaction.row
        is_same = its.producer_epoch == row.producer_epoch
        if is_same and its.from_us <= row.asked_us and row.told_us < min(its.at_us, its.from_us + its.timeout_us):
            self.violated(
                row.told_us,
                f"{row.process} found {transaction.named} hanging in {row.topic}-{row.partition} and aborted it, while "
                f"its producer had it open",
            )

    def _judge_left(self, row: ToldTransactionRow, rows: Sequence[ToldTransactionRow]) -> None:
        for later in rows:
            if later.asked_us >= row.abort_end_us:
                self.violated(
                    later.told_us,
                    f"{row.process} aborted the transaction of producer {row.producer_id} in {row.topic}-"
                    f"{row.partition} from offset {row.start_offset} on, and {later.process} got it as open",
                )


def _key(row: ToldTransactionRow) -> _Key:
    return _Key(partition_of(row), row.producer_id, row.start_offset)


def _looks_between(
    rows: Sequence[ToldTransactionRow], from_us: int, until_us: int | None
) -> Iterator[ToldTransactionRow]:
    """Yield one row of each check that began at or after ``from_us`` and ended before ``until_us``."""
    seen = set[tuple[str, int]]()
    for row in rows:
        if (row.process, row.index) in seen or row.asked_us < from_us:
            continue
        if until_us is None or row.told_us < until_us:
            seen.add((row.process, row.index))
            yield row
