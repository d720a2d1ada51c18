"""Transactional IDs at their coordinator: one owner each, and in time the abort after a timeout, the end, and the
expiration.

``state_changes.py`` compares the coordinator's state with the committed values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from chaos.checks.check import Check, CheckContext, Inspection, StateCheck
from chaos.checks.history import History, TopicPartition, without_node
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.transactions.transaction_state import (
    ONGOING,
    PREPARE_ABORT,
    PREPARED,
    STATE_TOPIC,
    StatePartition,
    StateValue,
)
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from reference_broker.core.node import Node

LARGE_EPOCH = 30_000
"""A producer ID has 32,767 epochs. Where they may be used up, the next producer gets a new ID (X-1)."""
SLACK_MS = 1_500
"""Physical: markers, and then the records of the end and of the tombstone, are replicated first."""
MARKERS_US = 3_000_000
"""Physical: the time that a coordinator needs for retries of markers and of the completion, one second each, and for
the replication of both."""


class OwnersUnique(StateCheck):
    """transactions-consistent (X-1): InitProducerId gives no two producers the same producer ID and epoch, and no two
    transactional IDs the same producer ID.

    A producer that continues after an error sends its producer ID and epoch (KIP-360), and may get them again. After a
    loss of committed values of its partition (E-7) a transactional ID may get an epoch again.
    """

    guarantee = "transactions-consistent"
    acts_on = (ApiKey.INIT_PRODUCER_ID, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[Any]()
        self._assigned: dict[tuple[int, int], str | None] = {}
        """the transactional ID that got each producer ID and epoch; None for an idempotent producer"""
        self._owners: dict[int, str | None] = {}
        """the transactional ID that got each producer ID"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == ApiKey.INIT_PRODUCER_ID:
            self._pending.add(node_id, event, event.body)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == ApiKey.INIT_PRODUCER_ID:
                body, response = self._pending.pop(node_id, effect), cast("Any", effect.body)
                if body is not None and response is not None and response.error_code == ErrorCode.none:
                    self._judge(at_us, node_id, body, (int(response.producer_id), int(response.producer_epoch)))

    def _judge(self, at_us: int, node_id: int, body: Any, owner: tuple[int, int]) -> None:
        self.evidence += 1
        producer_id, epoch = owner
        name = None if body.transactional_id is None else str(body.transactional_id)
        continues = int(body.producer_id) >= 0
        is_repeated = owner in self._assigned and not (continues and self._assigned[owner] == name)
        is_of_another = self._owners.get(producer_id, name) != name
        is_excused = name is not None and self.transactions.has_lost(name)
        if is_of_another or (is_repeated and not is_excused):
            self.violated(
                at_us,
                f"node {node_id} gave producer ID {producer_id} with epoch {epoch} to {name or 'a producer'}, and "
                f"{self._owners[producer_id] or 'a producer'} had got {'that' if is_repeated else 'the ID'} before",
            )
        self._assigned[owner] = self._owners[producer_id] = name


@dataclass(slots=True)
class _Moment:
    """A time by two clocks: the node's wall clock, by which IDs expire, and the run's clock, which no fault changes."""

    wall_ms: int
    at_us: int

    def ages_ms(self, now: "_Moment") -> tuple[int, int]:
        """Return the time since then by each of the clocks."""
        return now.wall_ms - self.wall_ms, (now.at_us - self.at_us) // 1000


def _had_fault_since(context: CheckContext, since_us: int) -> bool:
    """Return whether a fault affected a node or a link at that time or later. Physical: a node that is paused, or
    reaches no other to replicate what it writes, does what is due later."""
    fault_times = context.quorum.fault_times
    return any(until_us >= since_us for until_us in (*fault_times.nodes.values(), *fault_times.links.values()))


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
        self.transactions.on_value_committed.append(self.value_committed)
        self._open: dict[str, _Moment] = {}
        """time at which the transaction of each transactional ID started, if it is open"""
        self._timed_out: dict[str, int] = {}
        """time by the wall clock at which a transaction of each ID was last timed out; the value of the abort has the
        same time"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is Note and effect.what == TIMED_OUT:
                self._judge_timed_out(at_us, node, str(dict(effect.fields)["transactional_id"]))

    def _judge_timed_out(self, at_us: int, node: "Node", transactional_id: str) -> None:
        values = self.transactions.known(transactional_id)
        partition = self.transactions.ids.get(transactional_id)
        # Physical: a coordinator that was replaced and does not know it yet goes by old values.
        if not values or (partition is not None and partition.leader[1] != node.broker.node_id):
            return
        self.evidence += 1
        value, wall_ms = values[-1], node.broker.now.wall_ms
        self._timed_out[transactional_id] = wall_ms
        if value.state != ONGOING or wall_ms < value.started_ms + value.timeout_ms:
            self.violated(
                at_us,
                f"node {node.broker.node_id} timed out {transactional_id} at {wall_ms} ms, and its last value "
                f"is {value.named}, started at {value.started_ms} ms with a timeout of {value.timeout_ms} ms",
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
        opened = self._open.pop(value.transactional_id, None)
        if opened is None or before is None or before.state != ONGOING:
            return
        self.evidence += 1
        is_timed_out = self._timed_out.get(value.transactional_id) == value.updated_ms
        if is_timed_out and value.state == PREPARE_ABORT and value.epoch <= before.epoch:
            self.violated(
                at_us,
                f"{value.transactional_id}: {value.named} is the abort of a transaction that timed out, and does not "
                f"fence its producer, which has epoch {before.epoch}",
            )
        config, age_ms = node.broker.config, min(opened.ages_ms(now))
        most_ms = before.timeout_ms + config.transaction_abort_timed_out_transaction_cleanup_interval_ms + SLACK_MS
        if age_ms > most_ms and not _had_fault_since(self.context, opened.at_us):
            self.violated(
                at_us,
                f"{value.transactional_id}: {value.named} comes {age_ms} ms after the transaction began, {most_ms} ms "
                f"are the most with its timeout of {before.timeout_ms} ms",
            )


class EndingsInTime(StateCheck):
    """transactions-consistent (X-3): a decided transaction is completed in time.

    Once no fault affects a node or a link between nodes, each partition has its leader again within
    ``Settings.session_us`` and ``Settings.settled_us``, and a request of markers that got lost is resent after
    ``request.timeout.ms``. Physical: a partition without a leader gets no marker. After a loss of committed values of
    its partition (E-7) an ID is not judged.
    """

    guarantee = "transactions-consistent"
    inspection = Inspection.ONLY_THOROUGH

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.transactions.on_value_committed.append(self.value_committed)
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
            if since_us > limit_us and not any(_leaderless(node, partition) for partition in value.partitions):
                del self._decided[transactional_id]
                if self.transactions.has_lost(transactional_id):
                    continue
                self.violated(
                    at_us,
                    f"{transactional_id}: {value.named} is not complete after {since_us // 1000} ms without a fault of "
                    f"a node or a link between nodes, and {limit_us // 1000} ms are the most",
                )


def _leaderless(node: "Node", partition: TopicPartition) -> bool:
    image = node.broker.quorum_node.loader.image
    topic = image.topics.get(partition[0])
    if topic is None or partition[1] >= len(topic.partitions):
        return False
    leader = image.brokers.get(topic.partitions[partition[1]].leader)
    return leader is None or leader.fenced


_Led: TypeAlias = tuple[tuple[int, int], ...]
"""The partitions of STATE_TOPIC that a node leads, each with its leader epoch."""


@dataclass(slots=True)
class _Producer:
    """The producer that owns a transactional ID, by the responses of its coordinator."""

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
    acts_on = (
        ApiKey.PRODUCE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        type(None),
    )

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._producers: dict[tuple[int, str], _Producer] = {}
        """by node and transactional ID"""
        self._pending = PendingRequests[tuple[Any, _Moment]]()

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id, now = node.broker.node_id, _Moment(node.broker.now.wall_ms, at_us)
        if event is None:
            self._producers = without_node(self._producers, node_id)
            self._pending.restarted(node_id)
        elif type(event) is Request:
            if event.api_key in (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN):
                self._pending.add(node_id, event, (event.body, now))
            else:
                self._named(node_id, event.body, now)
        for effect in effects:
            if type(effect) is Reply and effect.api_key in (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN):
                requested = self._pending.pop(node_id, effect)
                if requested is not None and requested[0].transactional_id is not None:
                    self._judge(node, requested[0], effect, requested[1], now)

    def _named(self, node_id: int, body: Any, now: _Moment) -> None:
        for transactional_id in _ids_in(body):
            producer = self._producers.get((node_id, transactional_id))
            if producer is not None:
                producer.named = now

    def _judge(self, node: "Node", body: Any, reply: Reply, requested: _Moment, now: _Moment) -> None:
        response: Any = reply.body
        key = node.broker.node_id, str(body.transactional_id)
        producer = self._producers.get(key)
        if producer is not None:
            if producer.led != _led(node):
                producer = None
                del self._producers[key]
            elif response.error_code != ErrorCode.none or reply.api_key == ApiKey.END_TXN:
                producer.named = now
        if response.error_code != ErrorCode.none:
            return
        if reply.api_key == ApiKey.END_TXN:
            if producer is not None:
                producer.requested = requested
            return
        config, timeout_ms = node.broker.config, body.transaction_timeout.total_seconds() * 1000
        if timeout_ms > config.transaction_max_timeout_ms:
            self.violated(now.at_us, f"{key[1]} was granted a timeout of {timeout_ms:.0f} ms")
        producer_id, epoch = int(response.producer_id), int(response.producer_epoch)
        if producer is not None:
            self._judge_age(node, key[1], producer, producer_id, requested)
        self._producers[key] = _Producer(_led(node), producer_id, epoch, int(timeout_ms), requested, now)

    def _judge_age(
        self, node: "Node", transactional_id: str, producer: _Producer, next_producer_id: int, requested: _Moment
    ) -> None:
        self.evidence += 1
        config, is_same = node.broker.config, next_producer_id == producer.producer_id
        who = f"{transactional_id} (producer ID {producer.producer_id})"
        idle_ms, busy_ms = min(producer.named.ages_ms(requested)), max(producer.requested.ages_ms(requested))
        least_ms = config.transactional_id_expiration_ms
        most_ms = producer.timeout_ms + config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        most_ms += least_ms + config.transaction_remove_expired_transaction_cleanup_interval_ms + SLACK_MS
        if is_same and idle_ms > most_ms and not _had_fault_since(self.context, producer.named.at_us):
            self.violated(requested.at_us, f"{who} was not forgotten in {idle_ms} ms, {most_ms} ms are the most")
        elif not is_same and 0 <= busy_ms < least_ms and producer.epoch < LARGE_EPOCH:
            self.violated(requested.at_us, f"{who} was forgotten after {busy_ms} ms, {least_ms} ms are the least")


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
