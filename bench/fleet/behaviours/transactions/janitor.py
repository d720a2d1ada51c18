"""A janitor looks for transactions that hang and aborts them, as an admin does with Kafka's ``kafka-transactions``.

One look has the steps of ``find-hanging`` (KIP-664):

1. DescribeProducers tells of each partition which producers have a transaction open, from which offset on, and when
   they wrote last. Those that wrote not long ago are left alone.
2. ListTransactions on every node tells which transactional IDs these producers have.
3. DescribeTransactions tells which partitions the coordinator of such an ID still expects to end. A transaction that is
   open in any other partition hangs, and so does one whose producer has no transactional ID.

``abort`` sends WriteTxnMarkers to the partition's leader, with the producer's ID and epoch and with the newest
coordinator's epoch that the partition knows of this producer.

A look is no snapshot: a transaction may end between two steps, and its coordinator may move. So a janitor aborts only
what it finds hanging in two looks, one after the other. A look that lacks an answer counts for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.protocol import Chance, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Operation, Steps
from bench.fleet.behaviours.transactions import looking
from bench.fleet.behaviours.transactions.looking import OpenTransaction
from bench.fleet.behaviours.transactions.strays import SETTLE_US
from reference_broker.client import group_requests
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.transactions.requests import TRANSACTION_KEY_TYPE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode, error_name
from reports.rows import ToldTransactionRow

T = TypeVar("T")
LOOK: Final = "look"
OLDEST_VERSION: Final = 0
MARKERS_VERSION: Final = 1
"""Version 0 is gone with Kafka 4."""
MARKERS_WAIT_US: Final = 1_000_000
NOTHING, YOUNG, KNOWN, HANGING = "nothing", "young", "known", "hanging"
UNKNOWN: Final = "unknown"
ALL_SETTLED_US: Final = SETTLE_US + 2_000_000
"""A look that begins so long after Stopping sees all that strays have left."""


@dataclass(frozen=True, slots=True)
class JanitorPlan:
    """A look at all of ``partitions`` begins every ``interval_us``. A transaction whose producer wrote less than
    ``older_than_ms`` ago is left alone."""

    process: str
    partitions: tuple[TopicPartition, ...]
    interval_us: int
    older_than_ms: int


@dataclass(slots=True)
class Look:
    """What one look was told so far. ``asked_us`` says when the leader of each partition was asked, and ``told_us``
    when the last answer had come. ``ids`` maps producer IDs to transactional IDs, and ``expected`` these to the
    partitions that their coordinators still expect to end."""

    operation: Operation
    told_us: int = -1
    asked_us: dict[TopicPartition, int] = field(default_factory=dict)
    open: list[OpenTransaction] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)
    expected: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)


class LookFailed(Exception):  # noqa: N818 - says what happened
    """A step had no answer, or an error. The message is its name."""


class Janitor(ClusterScript):
    """Ends after Stopping, with the first look that finds nothing open once all strays have settled."""

    def __init__(self, plan: JanitorPlan, settings: ClientSettings, random: Chance) -> None:
        super().__init__(plan.process, settings, random, [each.topic for each in plan.partitions])
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
            found = yield from self._look(min(due_us, self.now.mono_us))
            is_clean = found is not None and not found.open and began_settled
            due_us = max(due_us + self.plan.interval_us, self.now.mono_us)

    @property
    def _all_settled(self) -> bool:
        return self.stopping_at_us is not None and self.now.mono_us - self.stopping_at_us >= ALL_SETTLED_US

    def _look(self, due_us: int) -> Steps[Look | None]:
        """Looks once, and aborts what hangs. Returns None if a step failed."""
        look = Look(self.journal.begin(LOOK, due_us))
        try:
            # A former leader that follows tells of its producers, too, but takes no markers.
            if not (yield from self.refresh()):
                raise LookFailed("no_metadata")
            yield from self._describe_partitions(look)
            old = [each for each in look.open if self._is_old(each)]
            yield from self._find_ids(look, old)
            yield from self._describe_ids(look)
            look.told_us = self.now.mono_us
        except LookFailed as failed:
            self.journal.end(look.operation, "fail", str(failed))
            self._suspects = frozenset()
            self.disconnect()
            yield from self.back_off()
            return None
        rows = {each: self._row(look, each) for each in look.open}
        hanging = frozenset(each for each in look.open if rows[each].found == HANGING)
        for each in look.open:
            if each in hanging & self._suspects:
                row = rows[each]
                row.abort_us = self.now.mono_us
                row.abort = yield from self._abort(each)
                row.abort_end_us = self.now.mono_us
        self._suspects = hanging
        self.journal.end(look.operation, "ok", rows=(*rows.values(), *self._rows_of_quiet(look)))
        self.succeeded()
        return look

    def _is_old(self, each: OpenTransaction) -> bool:
        return self.now.wall_ms - each.last_timestamp_ms >= self.plan.older_than_ms

    def _found(self, look: Look, each: OpenTransaction) -> str:
        if not self._is_old(each):
            return YOUNG
        return KNOWN if each.where in look.expected.get(look.ids.get(each.producer_id, ""), ()) else HANGING

    # -- the steps of a look ------------------------------------------------------------------------------------

    def _describe_partitions(self, look: Look) -> Steps[None]:
        by_leader: dict[NodeAddress, list[TopicPartition]] = {}
        for where in self.plan.partitions:
            leader = self.metadata.leader_of(where)
            if leader is None:
                raise LookFailed("no_leader")
            by_leader.setdefault(leader, []).append(where)
        for leader, wanted in by_leader.items():
            asked_us = self.now.mono_us
            body = yield from self._asked(leader, ApiKey.DESCRIBE_PRODUCERS, looking.describe_producers(wanted))
            look.asked_us |= dict.fromkeys(wanted, asked_us)
            look.open += _right(looking.open_transactions(body))

    def _find_ids(self, look: Look, old: Sequence[OpenTransaction]) -> Steps[None]:
        wanted = sorted({each.producer_id for each in old})
        if wanted:
            for node in [self.metadata.nodes[each] for each in sorted(self.metadata.nodes)]:
                body = yield from self._asked(node, ApiKey.LIST_TRANSACTIONS, looking.list_transactions(wanted))
                look.ids |= _right(looking.transactional_ids(body))

    def _describe_ids(self, look: Look) -> Steps[None]:
        for each in look.ids.values():
            found = yield from self._call(
                ApiKey.FIND_COORDINATOR,
                self.settings.versions.find_coordinator,
                group_requests.find_coordinator(each, TRANSACTION_KEY_TYPE),
            )
            coordinator = _right(group_requests.coordinator_of(found, each))
            body = yield from self._asked(coordinator, ApiKey.DESCRIBE_TRANSACTIONS, looking.describe_transaction(each))
            look.expected[each] = _right(looking.expected_partitions(body))

    def _abort(self, each: OpenTransaction) -> Steps[str]:
        """Returns ``ok``, Kafka's error name, or ``unknown``."""
        leader = self.metadata.leader_of(each.where)
        if leader is None or not (yield from self.connect_to_node(leader)):
            return UNKNOWN
        body = looking.abort_request(each)
        answer = yield from self.call(ApiKey.WRITE_TXN_MARKERS, MARKERS_VERSION, body, MARKERS_WAIT_US)
        if isinstance(answer, str):
            return UNKNOWN
        error = looking.abort_error(answer.body)
        return "ok" if error == ErrorCode.none else error_name(int(error))

    def _asked(self, node: NodeAddress, api_key: ApiKey, body: object) -> Steps[object]:
        if not (yield from self.connect_to_node(node)):
            raise LookFailed("refused")
        return (yield from self._call(api_key, OLDEST_VERSION, body))

    def _call(self, api_key: ApiKey, version: int, body: object) -> Steps[object]:
        answer = yield from self.call(api_key, version, body)
        if isinstance(answer, str):
            raise LookFailed(answer)
        return answer.body

    # -- what is recorded ---------------------------------------------------------------------------------------

    def _row(self, look: Look, each: OpenTransaction) -> ToldTransactionRow:
        return ToldTransactionRow(
            self.process,
            look.operation.index,
            each.where.topic,
            each.where.partition,
            each.producer_id,
            each.producer_epoch,
            each.start_offset,
            look.ids.get(each.producer_id, ""),
            self._found(look, each),
            look.asked_us[each.where],
            look.told_us,
            "",
            look.told_us,
            look.told_us,
        )

    def _rows_of_quiet(self, look: Look) -> list[ToldTransactionRow]:
        """Rows of the partitions in which nothing is open."""
        busy, told_us, index = {each.where for each in look.open}, look.told_us, look.operation.index
        return [
            ToldTransactionRow(
                self.process, index, *where, -1, -1, -1, "", NOTHING, asked_us, told_us, "", told_us, told_us
            )
            for where, asked_us in look.asked_us.items()
            if where not in busy
        ]


def _right(told: T | Error | int) -> T:
    """Returns what was told if it is no error."""
    if isinstance(told, int):
        raise LookFailed(error_name(int(told)))
    return told
