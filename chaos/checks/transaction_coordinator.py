"""The transaction coordinator: its transactional IDs, its timeouts, and hanging transactions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from chaos.checks.check import Check, CheckContext, ProducerCheck, StateCheck
from chaos.checks.history import OFFSETS_TOPIC, History, TopicPartition, grouped, partition_of
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.producer_view import LoggedProducer, LogProducers, ProducedBatch, lone_batch_in
from chaos.checks.replica_view import offsets_partition
from chaos.checks.transaction_state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    FIRST_VALUE,
    ONGOING,
    OUTCOMES,
    PREPARE_ABORT,
    PREPARED,
    REMOVED,
    STATE_TOPIC,
    STATES,
    StatePartition,
    StateValue,
    wrong_step,
)
from chaos.checks.transactions import Transaction, transactions
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request, Send
from reports.rows import DescribedTransactionRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 22, 24, 25, 26, 28
LARGE_EPOCH = 30_000
"""A producer ID has 32,767 epochs. Where it may have used them up, the next producer gets a new one (X-1)."""
SLACK_MS = 1_500
"""Physical: markers, and then the records of the end and of the tombstone, are replicated first."""

_Led: TypeAlias = tuple[tuple[int, int], ...]
"""The partitions of STATE_TOPIC that a node leads, each with its leader epoch."""


@dataclass(slots=True)
class _Moment:
    """A time by two clocks: the node's wall clock, by which IDs expire, and the run's clock, which no fault changes."""

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
    """transactional-ids-kept: a coordinator rejects timeouts that are too long, and expires idle IDs in time and not
    earlier.

    X-7: InitProducerId with a timeout beyond ``transaction.max.timeout.ms`` is rejected. X-10: an ID that was idle for
    ``transactional.id.expiration.ms`` expires at the next check, which comes every
    ``transaction.remove.expired.transaction.cleanup.interval.ms``. The next producer with that ID gets a new producer
    ID. Before, it gets the same producer ID with another epoch.

    The check follows an ID by the requests that name it, as long as the same node leads the same partitions of
    ``__transaction_state``. An open transaction ends after its timeout at the latest, and the ID is idle from then on.
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
        most_ms = known.timeout_ms + config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        most_ms += least_ms + config.transaction_remove_expired_transaction_cleanup_interval_ms + SLACK_MS
        if is_same and idle_ms > most_ms and not self._is_troubled_since(known.named.at_us):
            self.violated(requested.at_us, f"{who} was not forgotten in {idle_ms} ms, {most_ms} ms are the most")
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

    After each event the check calls the coordinator's own validation (``TransactionCoordinator.validate``).

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
    """transactions-consistent (X-1, X-2, X-3, X-9): the committed values of a transactional ID change only by Kafka's
    transitions.

    The check reads from the bytes of each value: the state, the producer ID and epoch of the owner, the partitions, the
    start and the timeout. A producer ID belongs to one transactional ID. After a loss of committed values of its
    partition (E-7) the next value of an ID is not compared.
    """

    guarantee = "transactions-consistent"

    def value_committed(
        self, at_us: int, node: "Node", partition: StatePartition, before: StateValue | None, value: StateValue
    ) -> None:
        self.evidence += 1
        owner = self.transactions.owners.get(value.producer_id)
        if owner is not None and owner[1] != value.transactional_id:
            self.violated(
                at_us,
                f"{value.transactional_id}: {value.named} has the producer ID of {owner[1]} (X-1)",
            )
        if before is None and (partition.has_lost or partition.log is None or partition.log.cleaned_offset > 0):
            return
        wrong = wrong_step(before or FIRST_VALUE, value)
        if wrong:
            self.violated(
                at_us,
                f"{value.transactional_id}: node {node.broker.node_id} replicated {value.named}, after "
                f"{'nothing' if before is None else before.named}: {wrong}",
            )


NONE = 0
WRITE_TXN_MARKERS = 27


INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED = 47, 48, 49, 90


class _Effect(NamedTuple):
    """A response to a request that names a transactional ID."""

    requested_us: int
    transactional_id: str
    producer_id: int
    """the one in the response of InitProducerId, else that of the request"""
    epoch: int
    api: str
    error: int = NONE
    partitions: frozenset[TopicPartition] = frozenset()
    commits: bool = False
    owner: tuple[int, int] | None = None
    """the next producer ID and epoch that EndTxn 5 returned"""


class EffectsReplicated(StateCheck):
    """transactions-consistent (X-2, X-3): no step of a transactional ID has an effect before its value is committed.

    A response of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn or EndTxn without an error is sent only when a
    committed value agrees with it that was current at some time since the request. Repeated ends have the outcome of
    the first. WriteTxnMarkers is sent when the decision is committed, for its partitions, and with the leader epoch of
    the coordinator (X-6).

    AddPartitionsToTxn, AddOffsetsToTxn and EndTxn do not reject a producer that was the owner all the time since the
    request (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING), and EndTxn does not reject the end
    of a transaction that was open all that time (INVALID_TXN_STATE).

    A coordinator that does not know yet that it was replaced may return an old state, and is not judged. Neither is an
    ID after a loss of committed values of its partition (E-7).
    """

    guarantee = "transactions-consistent"
    acts_on = (
        *(INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, Closed, type(None)),
        (Send, WRITE_TXN_MARKERS),
    )

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[tuple[Any, int]]()
        self._replied: list[_Effect] = []
        self._sent: list[Any] = []
        """effects of the current event, which the view has not followed yet"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        self._replied, self._sent = [], []
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key in (INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN):
            self._pending.add(node_id, event, (event.body, at_us))
        for effect in effects:
            if type(effect) is Send and effect.api_key == WRITE_TXN_MARKERS:
                self._sent.append(effect.body)
            elif type(effect) is Reply and effect.api_key in (INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN):
                requested = self._pending.pop(node_id, effect)
                if requested is not None:
                    self._replied += _effects_of(node, *requested, effect)
        if self._replied or self._sent:
            self.context.replicas.after_event(node, self._judge)

    def _judge(self, at_us: int, node: "Node") -> None:
        replied, sent, self._replied, self._sent = self._replied, self._sent, [], []
        for each in replied:
            partition = self.transactions.ids.get(each.transactional_id)
            if partition is not None and partition.leader[1] != node.broker.node_id:
                continue
            if self.transactions.has_lost(each.transactional_id):
                continue  # E-7: no replica had kept the records of its coordinator.
            self.evidence += 1
            wrong = self._wrong_error(each) if each.error else self._wrong(each)
            if wrong:
                error = f"error {each.error}" if each.error else "no error"
                self.violated(
                    at_us,
                    f"node {node.broker.node_id} returned {each.api} of {each.transactional_id} (producer "
                    f"{each.producer_id}, epoch {each.epoch}) with {error}, and {wrong}",
                )
        for body in sent:
            for marker in body.markers:
                self._judge_marker(at_us, node, marker)

    def _wrong(self, effect: _Effect) -> str:
        current = [
            each
            for each in self.transactions.since(effect.transactional_id, effect.requested_us)
            if each.state != REMOVED
        ]
        owner = effect.producer_id, effect.epoch
        own = [each for each in current if (each.producer_id, each.epoch) == owner]
        values = ", ".join(each.named for each in current) or "nothing"
        if effect.api == "InitProducerId":
            is_there = any(each.state == EMPTY for each in own)
            return "" if is_there else f"no value with this owner is committed, only {values} (X-2)"
        if effect.api != "EndTxn":
            is_there = any(each.state == ONGOING and each.partitions >= effect.partitions for each in own)
            return "" if is_there else f"{sorted(effect.partitions)} are not committed, only {values} (X-2)"
        decided = [each for each in current if OUTCOMES.get(each.state) is effect.commits]
        if not decided:
            decision = "commit" if effect.commits else "abort"
            return f"no decision to {decision} is committed, only {values} (X-3)"
        if effect.owner is not None:
            owners = [
                (each.producer_id, each.epoch) if each.next_producer_id < 0 else (each.next_producer_id, 0)
                for each in decided
            ]
            if effect.owner not in owners:
                return f"it returned producer ID and epoch {effect.owner}, and {owners} are committed (KIP-890)"
        return ""

    def _wrong_error(self, effect: _Effect) -> str:
        """Return why the owner of the ID must not get this error, or nothing."""
        current = self.transactions.since(effect.transactional_id, effect.requested_us)
        if not current:
            return ""
        is_owner = all((each.producer_id, each.epoch) == (effect.producer_id, effect.epoch) for each in current)
        if effect.error in (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING) and is_owner:
            return "that producer is the owner (X-1)"
        is_open = all(each.state == ONGOING for each in current)
        if effect.error == INVALID_TXN_STATE and is_owner and is_open:
            return "its transaction is open (X-2)"
        return ""

    def _judge_marker(self, at_us: int, node: "Node", marker: Any) -> None:
        producer_id, epoch, commits = (
            int(marker.producer_id),
            int(marker.producer_epoch),
            bool(marker.transaction_result),
        )
        owner = self.transactions.owners.get(producer_id)
        if owner is not None and self.transactions.has_lost(owner[1]):
            return
        self.evidence += 1
        named = {(str(topic.name), int(index)) for topic in marker.topics for index in topic.partition_indexes}
        early = [each for each in named if (producer_id, epoch, commits, each) not in self.transactions.decided]
        kind = "commit" if commits else "abort"
        who = f"node {node.broker.node_id} sent {kind} markers of producer {producer_id}, epoch {epoch}"
        if early:
            self.violated(at_us, f"{who}, for {sorted(early)}, and no such decision is committed (X-3)")
            return
        partition = self.transactions.owners[producer_id][0]
        led = node.broker.partitions.by_name.get((STATE_TOPIC, partition.index))
        if led is not None and int(marker.coordinator_epoch) != led.leader_epoch:
            self.violated(
                at_us,
                f"{who} with coordinator epoch {marker.coordinator_epoch}, and it leads {STATE_TOPIC}-{led.index} in "
                f"epoch {led.leader_epoch} (X-6)",
            )


def _effects_of(node: "Node", body: Any, requested_us: int, reply: Reply) -> Iterator[_Effect]:
    """Yield what a response says of transactional IDs, if it has no error."""
    response: Any = reply.body
    if reply.api_key == ADD_PARTITIONS:
        yield from _added_in(body, requested_us, reply)
        return
    error, transactional_id = int(response.error_code), body.transactional_id
    if not transactional_id or (error != NONE and reply.api_key == INIT_PRODUCER_ID):
        return
    if error != NONE:
        owner = int(body.producer_id), int(body.producer_epoch)
        yield _Effect(requested_us, str(transactional_id), *owner, APIS[reply.api_key], error)
    elif reply.api_key == INIT_PRODUCER_ID:
        owner = int(response.producer_id), int(response.producer_epoch)
        yield _Effect(requested_us, str(body.transactional_id), *owner, "InitProducerId")
    elif reply.api_key == ADD_OFFSETS:
        count = len(node.broker.quorum_node.loader.image.topics[OFFSETS_TOPIC].partitions)
        added = frozenset([(OFFSETS_TOPIC, offsets_partition(str(body.group_id), count))])
        owner = int(body.producer_id), int(body.producer_epoch)
        yield _Effect(requested_us, str(body.transactional_id), *owner, "AddOffsetsToTxn", partitions=added)
    else:
        owner = int(body.producer_id), int(body.producer_epoch)
        returned = (
            (int(response.producer_id), int(response.producer_epoch)) if reply.api_version >= RETURNS_FROM else None
        )
        yield _Effect(
            *(requested_us, str(body.transactional_id), *owner, "EndTxn"),
            commits=bool(body.committed),
            owner=returned,
        )


APIS = {ADD_OFFSETS: "AddOffsetsToTxn", END_TXN: "EndTxn"}
RETURNS_FROM = 5
"""The version of EndTxn from which it returns the next producer ID and epoch."""
FOR_BROKERS_FROM = 4
"""The version of AddPartitionsToTxn from which it has several transactions."""


def _added_in(body: Any, requested_us: int, reply: Reply) -> Iterator[_Effect]:
    """Yield for each transaction the partitions that were added, or that belong to it already."""
    response: Any = reply.body
    results = {str(each.transactional_id): each for each in response.results_by_transaction}
    for each in body.transactions:
        result = results.get(str(each.transactional_id) if reply.api_version >= FOR_BROKERS_FROM else "")
        added = frozenset(
            (str(topic.name), int(of_partition.partition_index))
            for topic in (() if result is None else result.topic_results)
            for of_partition in topic.results_by_partition
            if of_partition.partition_error_code == NONE
        )
        owner = int(each.producer_id), int(each.producer_epoch)
        errors = {
            int(of_partition.partition_error_code)
            for topic in (() if result is None else result.topic_results)
            for of_partition in topic.results_by_partition
        }
        for error in sorted(errors - {NONE}):
            yield _Effect(requested_us, str(each.transactional_id), *owner, "AddPartitionsToTxn", error)
        if added:
            yield _Effect(requested_us, str(each.transactional_id), *owner, "AddPartitionsToTxn", partitions=added)


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
    acts_on = (WRITE_TXN_MARKERS,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._requested: set[_Marker] = set()
        """markers that clients requested"""
        self._new: list[tuple[_Marker, int]] = []
        """markers of the current event with their offsets"""
        self._written: dict[_Marker, dict[int, int]] = {}
        """offset and time of the last such markers in any log"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if type(event) is Request and event.api_key == WRITE_TXN_MARKERS and event.tag.role == "client":
            body: Any = event.body
            self._requested.update(
                (
                    (str(topic.name), int(index)),
                    int(each.producer_id),
                    int(each.producer_epoch),
                    each.transaction_result,
                )
                for each in body.markers
                for topic in each.topics
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
        where = producers.log.directory.rpartition("-")[0], producers.index
        marker = where, batch.producer_id, batch.epoch, batch.commits
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
            where, producer_id, epoch, commits = marker
            kind = "commit" if commits else "abort"
            is_decided = (producer_id, epoch, commits, where) in self.transactions.decided
            owner = self.transactions.owners.get(producer_id)
            is_lost = owner is not None and self.transactions.may_have_lost_decision(owner[1], producer_id, epoch)
            if is_decided or is_lost or marker in self._requested:
                continue
            self.violated(
                at_us,
                f"{where[0]}-{where[1]}: node {node.broker.node_id} wrote the {kind} marker of "
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
            if is_replicated or self._is_excused(node, where, before) or self._is_found(marker, high_watermark):
                continue
            self.violated(
                at_us,
                f"{value.transactional_id}: node {node.broker.node_id} wrote {value.named}, and "
                f"{where[0]}-{where[1]} has no marker of producer {before.producer_id}, epoch {before.epoch}, "
                f"below its high watermark",
            )

    def _is_found(self, marker: _Marker, high_watermark: int) -> bool:
        """Return whether a log has the marker in batches that the view has not reported one by one: those that it had
        read as a whole, and those that it has not read.

        X-3: a marker ends what the producer wrote before it, so that of an earlier transaction with the same epoch has
        records of the producer behind it, in this log or in another one.
        """
        where, *ended = marker
        own = [
            (producers, each)
            for producers in self._logs_of(where)
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

    def _logs_of(self, where: TopicPartition) -> list[LogProducers]:
        directory = f"{where[0]}-{where[1]}"
        return [each for (_, name), each in self.producers.logs.items() if name == directory]

    def _high_watermark(self, where: TopicPartition) -> int:
        return max((each.log.high_watermark for each in self._logs_of(where)), default=0)

    def _is_excused(self, node: "Node", where: TopicPartition, before: StateValue) -> bool:
        topic = node.broker.quorum_node.loader.image.topics.get(where[0])
        if topic is None or where[1] >= len(topic.partitions):
            return True
        if self.context.replicas.may_have_lost(where, before.at_us):
            return True
        states = [each.states.get(before.producer_id) for each in self._logs_of(where)]
        return any(each is not None and each.epoch > before.epoch for each in states)


def _led_here(node: "Node", producers: LogProducers, batch: ProducedBatch) -> bool:
    """Return whether this node appended the batch as the leader."""
    led = node.broker.partitions.by_id.get((producers.log.topic_id, producers.index))
    return led is not None and led.log is producers.log and led.leader_epoch == batch.leader_epoch


class HeldIsReplicated(StateCheck):
    """transactions-consistent (X-2): a coordinator that has loaded a partition has the last committed value of each
    transactional ID.

    The check compares all IDs when the first value is committed after a load, and then each ID whose value is
    committed. While a step is being written, the coordinator may have the previous value.
    """

    guarantee = "transactions-consistent"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._changed: dict[str, StatePartition] = {}
        self._judged: dict[tuple[int, int], object] = {}
        """by node and partition: what it held when all IDs were compared"""

    def value_committed(
        self,
        at_us: int,  # noqa: ARG002
        node: "Node",
        partition: StatePartition,
        before: StateValue | None,  # noqa: ARG002
        value: StateValue,
    ) -> None:
        if not self._changed:
            self.context.replicas.after_event(node, self._judge)
        self._changed[value.transactional_id] = partition

    def _judge(self, at_us: int, node: "Node") -> None:
        changed, self._changed = self._changed, {}
        node_id = node.broker.node_id
        for index, partition in {each.index: each for each in changed.values()}.items():
            target = next((each for each in node.broker.transactions.active() if each.index == index), None)
            if target is None or target.led.log.high_watermark < target.loaded_end:
                continue
            ids = [each for each, where in changed.items() if where is partition]
            if self._judged.get((node_id, index)) is not target:
                self._judged[node_id, index] = target
                ids = list(partition.values)
            for transactional_id in ids:
                self.evidence += 1
                value = partition.values[transactional_id][-1]
                wrong = _difference(target.entries.get(transactional_id), value)
                if wrong:
                    self.violated(
                        at_us, f"node {node_id} has {transactional_id} {wrong}, and {value.named} is committed last"
                    )


def _difference(held: Any, value: StateValue) -> str:
    """Return what a coordinator holds of an ID, if it differs from the committed value."""
    if held is not None and held.pending is not None:
        return ""
    if value.state == REMOVED or held is None:
        return "" if value.state == REMOVED and held is None else f"as {held and held.current}"
    current = held.current
    current_value = (
        *(current.producer_id, current.producer_epoch, current.timeout_ms, current.state.value),
        *(frozenset(current.partitions), current.updated_ms, current.started_ms, current.next_producer_id),
    )
    wanted = (
        *(value.producer_id, value.epoch, value.timeout_ms, STATES[value.state]),
        *(value.partitions, value.updated_ms, value.started_ms, value.next_producer_id),
    )
    return "" if current_value == wanted else f"as {current}"


class OwnersUnique(StateCheck):
    """transactions-consistent (X-1): no two producers get the same producer ID and epoch.

    A producer that continues after an error sends its ID and epoch (KIP-360), and may get the same epoch again. All
    other responses of InitProducerId differ, and a producer ID is given to one transactional ID, or to none. After a
    loss of committed values of its partition (E-7) a transactional ID may get an epoch again.
    """

    guarantee = "transactions-consistent"
    acts_on = (INIT_PRODUCER_ID, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[Any]()
        self._given: dict[tuple[int, int], str | None] = {}
        self._owners: dict[int, str | None] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == INIT_PRODUCER_ID:
            self._pending.add(node_id, event, event.body)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == INIT_PRODUCER_ID:
                body, response = self._pending.pop(node_id, effect), cast("Any", effect.body)
                if body is not None and response is not None and response.error_code == NONE:
                    self._judge(at_us, node_id, body, (int(response.producer_id), int(response.producer_epoch)))

    def _judge(self, at_us: int, node_id: int, body: Any, owner: tuple[int, int]) -> None:
        self.evidence += 1
        name = None if body.transactional_id is None else str(body.transactional_id)
        is_again = owner in self._given and (int(body.producer_id) < 0 or self._given[owner] != name)
        is_others = self._owners.get(owner[0], name) != name
        if is_others or (is_again and not (name is not None and self.transactions.has_lost(name))):
            self.violated(
                at_us,
                f"node {node_id} gave producer ID {owner[0]} with epoch {owner[1]} to {name or 'a producer'}, and "
                f"{self._owners[owner[0]] or 'a producer'} had got {'that' if is_again else 'the ID'} before",
            )
        self._given[owner] = self._owners[owner[0]] = name


TIMED_OUT = "transaction_timed_out"


class TimeoutsKept(StateCheck):
    """transactions-consistent (X-7): a transaction that is open for longer than its timeout is aborted at the next
    check, with an epoch that fences its producer, and none is aborted earlier.

    The coordinator checks every ``transaction.abort.timed.out.transaction.cleanup.interval.ms``. Ages are judged by the
    coordinator's wall clock and by the run's clock. Physical: after a fault of a node or a link since the begin, an
    abort may come later.
    """

    guarantee = "transactions-consistent"
    acts_on = (TIMED_OUT,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._open: dict[str, _Moment] = {}
        """the begin of each open transaction, by its transactional ID"""
        self._timed_out: dict[str, int] = {}
        """wall clock's time at which each ID's transaction was timed out last, which the abort's value has too"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is Note and effect.what == TIMED_OUT:
                transactional_id = str(dict(effect.fields)["transactional_id"])
                values = self.transactions.known(transactional_id)
                partition = self.transactions.ids.get(transactional_id)
                # Physical: a coordinator that was replaced and does not know it yet goes by old values.
                if not values or (partition is not None and partition.leader[1] != node.broker.node_id):
                    continue
                self.evidence += 1
                value, wall_ms = values[-1], node.broker.now.wall_ms
                self._timed_out[transactional_id] = wall_ms
                if value.state != ONGOING or wall_ms < value.started_ms + value.timeout_ms:
                    self.violated(
                        at_us,
                        f"node {node.broker.node_id} timed out {transactional_id} at {wall_ms} ms, and its last value "
                        f"is {value.named}, begun at {value.started_ms} ms with a timeout of {value.timeout_ms} ms",
                    )

    def value_committed(
        self,
        at_us: int,
        node: "Node",
        partition: StatePartition,  # noqa: ARG002
        before: StateValue | None,
        value: StateValue,
    ) -> None:
        now = _Moment(node.broker.now.wall_ms, at_us)
        if value.state == ONGOING:
            self._open.setdefault(value.transactional_id, now)
            return
        begun = self._open.pop(value.transactional_id, None)
        if begun is None or before is None or before.state != ONGOING:
            return
        self.evidence += 1
        is_timed_out = self._timed_out.get(value.transactional_id) == value.updated_ms
        if is_timed_out and value.state == PREPARE_ABORT and value.epoch <= before.epoch:
            self.violated(
                at_us,
                f"{value.transactional_id}: {value.named} is the abort of a transaction that timed out, and does not "
                f"fence its producer, which has epoch {before.epoch}",
            )
        config, age_ms = node.broker.config, min(begun.ages_ms(now))
        most_ms = before.timeout_ms + config.transaction_abort_timed_out_transaction_cleanup_interval_ms + SLACK_MS
        fault_times = self.context.quorum.fault_times
        ends_us = (*fault_times.nodes.values(), *fault_times.links.values())
        if age_ms > most_ms and not any(until_us >= begun.at_us for until_us in ends_us):
            self.violated(
                at_us,
                f"{value.transactional_id}: {value.named} comes {age_ms} ms after the transaction began, {most_ms} ms "
                f"are the most with its timeout of {before.timeout_ms} ms",
            )


MARKERS_US = 3_000_000
"""Physical: what a coordinator adds to the times below before it completes a transaction: its retries of markers and of
the completion, one second each, and the replication of both."""


class EndingsInTime(StateCheck):
    """transactions-consistent (X-3): a decided transaction is completed in time.

    Once no fault affects a node or a link between nodes, each partition has its leader again within
    ``Settings.session_us`` and ``Settings.settled_us``, and a request of markers that got lost is resent after
    ``request.timeout.ms``. Physical: a partition without a leader gets no marker. After a loss of committed values of
    its partition (E-7) an ID is not judged.
    """

    guarantee = "transactions-consistent"
    only_thorough = True

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._decided: dict[str, StateValue] = {}
        self._node: Node | None = None
        """the node that was seen last; all have the same settings"""

    def value_committed(
        self,
        at_us: int,  # noqa: ARG002
        node: "Node",
        partition: StatePartition,  # noqa: ARG002
        before: StateValue | None,  # noqa: ARG002
        value: StateValue,
    ) -> None:
        self._node = node
        if value.state in PREPARED:
            self._decided[value.transactional_id] = value
        else:
            self.evidence += self._decided.pop(value.transactional_id, None) is not None

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if self._decided:
            self._node = node
            self._judge(at_us)

    def end(self, history: History) -> None:
        self._judge(history.end_us)

    def _judge(self, at_us: int) -> None:
        node, settings = self._node, self.context.settings
        if node is None or not self._decided:
            return
        limit_us = settings.session_us + settings.settled_us + node.broker.config.request_timeout_ms * 1000 + MARKERS_US
        calm_us = at_us - max(self.context.quorum.fault_times.last_us(), 0)
        if calm_us <= limit_us:
            return
        for transactional_id, value in list(self._decided.items()):
            since_us = min(calm_us, at_us - value.at_us)
            if since_us > limit_us and not any(_leaderless(node, each) for each in value.partitions):
                del self._decided[transactional_id]
                if self.transactions.has_lost(transactional_id):
                    continue
                self.violated(
                    at_us,
                    f"{transactional_id}: {value.named} is not complete after {since_us // 1000} ms without a fault of "
                    f"a node or a link between nodes, and {limit_us // 1000} ms are the most",
                )


def _leaderless(node: "Node", where: TopicPartition) -> bool:
    image = node.broker.quorum_node.loader.image
    topic = image.topics.get(where[0])
    if topic is None or where[1] >= len(topic.partitions):
        return False
    leader = image.brokers.get(topic.partitions[where[1]].leader)
    return leader is None or leader.fenced


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
    acts_on = (PRODUCE, TXN_OFFSET_COMMIT)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
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
        if event.api_key == TXN_OFFSET_COMMIT:
            topic = node.broker.quorum_node.loader.image.topics.get(OFFSETS_TOPIC)
            count = 0 if topic is None else len(topic.partitions)
            where = OFFSETS_TOPIC, offsets_partition(str(body.group_id), count)
            self._arrived.setdefault((node_id, where, int(body.producer_id), int(body.producer_epoch), -1), at_us)
        elif event.api_key == PRODUCE:
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
        where = producers.log.directory.rpartition("-")[0], producers.index
        write = node.broker.node_id, where, batch.producer_id, batch.epoch, batch.first_sequence
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
            where = producers.log.directory.rpartition("-")[0], producers.index
            self._marked[node.broker.node_id, where, new[0].producer_id] = at_us

    def _judge(self, at_us: int, node: "Node") -> None:
        new, self._new = self._new, []
        for write in new:
            arrived_us = self._arrived.pop(write, None)
            node_id, where, producer_id, epoch, first = write
            owner = self.transactions.owners.get(producer_id)
            if arrived_us is None or (owner is not None and self.transactions.has_lost(owner[1])):
                continue
            self.evidence += 1
            since_us = max(arrived_us, self._marked.get((node_id, where, producer_id), -1) + 1)
            values = [] if owner is None else self.transactions.since(owner[1], since_us)
            is_open = any(
                (each.state, each.producer_id, each.epoch) == (ONGOING, producer_id, epoch) and where in each.partitions
                for each in values
            )
            if not is_open:
                self.violated(
                    at_us,
                    f"{where[0]}-{where[1]}: node {node.broker.node_id} began a transaction of producer {producer_id}, "
                    f"epoch {epoch}, with sequence {first}, which came at {arrived_us} us, and since {since_us} us its "
                    f"coordinator had {', '.join(each.named for each in values) or 'nothing'}",
                )


CLEANUP_US = 10_000_000
"""Kafka's default of that interval."""


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
            where = partition_of(end)
            own = [each for each in transactions(history) if _may_write_to(each, where)]
            for producer_id in self.context.producers.holding(where, end.last_stable_offset):
                may_be_open = any(
                    each.row.outcome != "ok" and each.row.at_us + each.row.timeout_us + late_us >= end.end_us
                    for each in own
                    if producer_id in (each.row.producer_id, None)
                )
                if not may_be_open and not self.context.is_forgotten(producer_id):
                    self.violated(
                        end.end_us,
                        f"{end.topic}-{end.partition}: the last stable offset is at {end.last_stable_offset}, the high "
                        f"watermark at {end.high_watermark}, and no transaction of "
                        f"{'any producer' if producer_id is None else f'producer {producer_id}'} may be open there",
                    )


def _may_write_to(transaction: Transaction, where: TopicPartition) -> bool:
    """Return whether the transaction has values in the partition, or offsets that may be there."""
    return any(partition_of(each) == where for each in transaction.sent) or (
        where[0] == OFFSETS_TOPIC and bool(transaction.offsets)
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
        reported: Sequence[DescribedTransactionRow],
        opened: dict[_Key, Transaction],
        by_key: dict[_Key, list[DescribedTransactionRow]],
    ) -> None:
        looks = grouped(reported, partition_of)
        for key, transaction in opened.items():
            if transaction.row.error != NOT_ADDED:
                continue
            named = by_key.get(key, [])
            named_by = {(row.process, row.index) for row in named}
            aborted_us = min((row.abort_us for row in named if row.abort), default=None)
            for look in _looks_between(looks.get(key.where, []), transaction.row.at_us, aborted_us):
                if (look.process, look.index) not in named_by:
                    self.violated(
                        look.received_us,
                        f"{look.process} got nothing of {transaction.named}, which hangs in "
                        f"{key.where[0]}-{key.where[1]} from offset {key.start_offset} on",
                    )

    def _judge_aborted(self, row: DescribedTransactionRow, transaction: Transaction | None) -> None:
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


def _looks_between(
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
