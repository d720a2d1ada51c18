"""What a transaction coordinator must do in time: it serves each owner of a transactional ID, and does in time what is
due."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from chaos.checks.check import CheckContext, Inspection, StateCheck
from chaos.checks.history import TopicPartition
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replication.eligible_replicas import min_isr_of
from chaos.checks.transactions.transaction_state import (
    EMPTY,
    LAST_EPOCH,
    ONGOING,
    PREPARED,
    REMOVED,
    STATE_TOPIC,
    StatePartition,
    StateValue,
)
from reference_broker.core.events import Closed, Effect, Event, Reply, Request
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import MetadataImage
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from reference_broker.core.node import Node

_Owner: TypeAlias = tuple[int, int]
"""Producer ID and epoch."""


class _Init(NamedTuple):
    """A request of InitProducerId by a producer that names what it has, and its response."""

    transactional_id: str
    named: _Owner
    requested_us: int
    error: int
    given: _Owner


class _Raised(NamedTuple):
    """The last epoch that a coordinator has raised at the request of its owner."""

    log: UnifiedLog
    """the coordinator's; another process or another leader has another one"""
    named: _Owner
    given: _Owner


class OwnersGoOn(StateCheck):
    """transactions-consistent (X-1, KIP-360): a producer that continues after an error names its producer ID and epoch,
    and InitProducerId serves the owner and nobody else.

    The owner is never fenced. A producer whose response was lost sends the same request again. As long as nothing else
    happened to the ID, the coordinator that raised the epoch returns it again. What another coordinator does is not
    judged, since the values do not have the epoch before.

    A producer gets the ID only if it names the current epoch or the one before, of the current producer ID, or of the
    former one whose epochs are used up. An ID that was not known, or that has expired, is anybody's.

    A coordinator that was replaced and does not know it goes by old values, and is not judged. Neither is an ID after a
    loss of committed values of its partition (E-7).
    """

    guarantee = "transactions-consistent"
    acts_on = (ApiKey.INIT_PRODUCER_ID, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[tuple[Any, int]]()
        self._replied: list[_Init] = []
        """of the current event, which the view has not followed yet"""
        self._raised: dict[str, _Raised] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        self._replied = []
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == ApiKey.INIT_PRODUCER_ID:
            body: Any = event.body
            if body.transactional_id is not None and int(body.producer_id) >= 0:
                self._pending.add(node_id, event, (body, at_us))
        for effect in effects:
            if type(effect) is Reply and effect.api_key == ApiKey.INIT_PRODUCER_ID:
                requested = self._pending.pop(node_id, effect)
                if requested is not None:
                    response: Any = effect.body
                    (body, requested_us), error = requested, int(response.error_code)
                    named = int(body.producer_id), int(body.producer_epoch)
                    given = int(response.producer_id), int(response.producer_epoch)
                    self._replied.append(_Init(str(body.transactional_id), named, requested_us, error, given))
        if self._replied:
            self.context.replicas.after_event(node, self._judge)

    def _judge(self, at_us: int, node: "Node") -> None:
        replied, self._replied = self._replied, []
        for init in replied:
            partition = self.transactions.ids.get(init.transactional_id)
            is_replaced = partition is not None and partition.leader[1] != node.broker.node_id
            if partition is None or is_replaced or self.transactions.has_lost(init.transactional_id):
                self._raised.pop(init.transactional_id, None)
                continue
            self.evidence += 1
            wrong = self._wrongly_refused(init, partition) if init.error else self._wrongly_served(init)
            if wrong:
                result = (
                    f"error {error_name(init.error)}"
                    if init.error
                    else f"producer {init.given[0]}, epoch {init.given[1]}"
                )
                self.violated(
                    at_us,
                    f"node {node.broker.node_id} returned {result} to {init.transactional_id}, which named producer "
                    f"{init.named[0]}, epoch {init.named[1]}, and {wrong} (KIP-360)",
                )
            if init.error == ErrorCode.none and partition.log is not None and init.given[0] == init.named[0]:
                self._raised[init.transactional_id] = _Raised(partition.log, init.named, init.given)

    def _wrongly_refused(self, init: _Init, partition: StatePartition) -> str:
        if init.error not in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced):
            return ""
        current = self.transactions.since(init.transactional_id, init.requested_us)
        owners = [(each.producer_id, each.epoch) for each in current]
        if owners and all(owner == init.named for owner in owners):
            return "that is the owner"
        raised = self._raised.get(init.transactional_id)
        is_again = raised is not None and raised.log is partition.log and raised.named == init.named
        if raised is None or not is_again or not current:
            return ""
        if any(each.state != EMPTY for each in current) or any(owner != raised.given for owner in owners):
            return ""
        return f"it had got epoch {raised.given[1]} for the same request, and nothing has happened since"

    def _wrongly_served(self, init: _Init) -> str:
        values = self.transactions.known(init.transactional_id)
        current = self.transactions.since(init.transactional_id, init.requested_us)
        former = values[: len(values) - len(current)]
        if len(values) < 2 or any(value.state == REMOVED for value in (*former[-1:], *current)):
            return ""  # A new ID, as far as it is known.
        may_be = {(each.producer_id, each.epoch - back) for each in current for back in (0, 1)}
        may_be |= {(value.producer_id, value.epoch) for value in former if value.epoch >= LAST_EPOCH}
        if init.named in may_be:
            return ""
        return f"the ID had {', '.join(each.named for each in current)}"


@dataclass(slots=True)
class _Due:
    """A step of a transactional ID that its coordinator must take."""

    state: object
    """all that it depends on: the last value, the coordinator, and the leaders and ISRs of the partitions"""
    since_us: int
    """time since which it can be done"""


class DutiesInTime(StateCheck):
    """transactions-consistent (X-3, X-7): a coordinator does in time what is due, once nothing is in the way.

    A transaction that has been open for its timeout is aborted at the next check, which comes every
    ``transaction.abort.timed.out.transaction.cleanup.interval.ms``. A decided one is completed when each of its
    partitions has the marker. Both hold for a coordinator that has loaded the transaction, too (X-2).

    Nothing is in the way while no fault affects a node or a link between nodes, and the metadata of the coordinator
    has, for the ID's own partition and for those that need a marker, an unfenced leader and an ISR of at least
    ``min.insync.replicas``. The limit counts from when all that began, and again from each change of it. It has the
    time of a lost request (``request.timeout.ms``) and that of a follower that no longer follows
    (``replica.lag.time.max.ms``). After a loss of committed values of its partition (E-7) an ID is not judged.
    """

    guarantee = "transactions-consistent"
    inspection = Inspection.AFTER_EVENTS

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.transactions.on_value_committed.append(self.value_committed)
        self._open: dict[str, StateValue] = {}
        """the last value of each ID that is open or decided"""
        self._due: dict[str, _Due] = {}
        self._judged_us: dict[int, int] = {}
        """by node: when its IDs were judged last"""

    def value_committed(
        self,
        at_us: int,  # noqa: ARG002
        node: "Node",  # noqa: ARG002
        partition: StatePartition,  # noqa: ARG002
        before: StateValue | None,  # noqa: ARG002
        value: StateValue,
    ) -> None:
        if value.state == ONGOING or value.state in PREPARED:
            self._open[value.transactional_id] = value
        elif self._open.pop(value.transactional_id, None) is not None:
            self.evidence += 1
            self._due.pop(value.transactional_id, None)

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if not self._open or at_us - self._judged_us.get(node.broker.node_id, -JUDGED_EVERY_US) < JUDGED_EVERY_US:
            return
        self._judged_us[node.broker.node_id] = at_us
        for transactional_id, value in list(self._open.items()):
            partition = self.transactions.ids[transactional_id]
            led = node.broker.partitions.by_name.get((STATE_TOPIC, partition.index))
            if led is None or led.log is not partition.log or partition.leader[1] != node.broker.node_id:
                continue
            state = self._state(node, partition, value)
            if state is None or self.transactions.has_lost(transactional_id):
                self._due.pop(transactional_id, None)
                continue
            due = self._due.get(transactional_id)
            if due is None or due.state != state:
                due = self._due[transactional_id] = _Due(state, at_us)
            since_us = max(due.since_us, self.context.quorum.fault_times.last_us())
            limit_us = self._limit_us(node, value)
            if at_us - since_us > limit_us:
                del self._open[transactional_id], self._due[transactional_id]
                what = "completed" if value.state in PREPARED else f"aborted, with a timeout of {value.timeout_ms} ms"
                self.violated(
                    at_us,
                    f"{transactional_id}: node {node.broker.node_id} has {value.named}, which is not {what}. "
                    f"Nothing was in the way for {(at_us - since_us) // 1000} ms, {limit_us // 1000} ms are the most",
                )

    def _limit_us(self, node: "Node", value: StateValue) -> int:
        config = node.broker.config
        limit_ms = config.request_timeout_ms + config.replica_lag_time_max_ms
        if value.state == ONGOING:
            limit_ms += config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        return limit_ms * 1000 + WORK_US + self.context.settings.slices_us

    @staticmethod
    def _state(node: "Node", partition: StatePartition, value: StateValue) -> object:
        """Return all that the duty depends on, or None if nothing is due or something is in the way."""
        image = node.broker.quorum_node.loader.image
        if value.state == ONGOING and node.broker.now.wall_ms < value.started_ms + value.timeout_ms:
            return None
        if partition.log is None or partition.log.is_offline:
            return None
        needed = [(STATE_TOPIC, partition.index), *(sorted(value.partitions) if value.state in PREPARED else ())]
        least = node.broker.config.min_insync_replicas
        states = [_writable(image, each, least) for each in needed]
        if None in states:
            return None
        return value.offset, partition.leader, partition.losses, states


WORK_US = 5_000_000
"""Physical: what a coordinator may add, its retries of markers and of the completion, which come after a second each,
and the replication of all that."""
JUDGED_EVERY_US = 200_000
"""Bounds the cost. A leader that changes and changes back in between has another leader epoch."""
DELETED = "deleted"


def _writable(image: MetadataImage, partition: TopicPartition, least: int) -> object:
    """Return the leader, its epoch and the ISR of a partition that can be written, or None."""
    topic = image.topics.get(partition[0])
    if topic is None or partition[1] >= len(topic.partitions):
        return DELETED
    state = topic.partitions[partition[1]]
    leader = image.brokers.get(state.leader)
    min_isr = min(min_isr_of(image, partition[0], least), len(state.replicas))
    if leader is None or leader.fenced or len(state.isr) < min_isr:
        return None
    return state.leader, state.leader_epoch, tuple(state.isr)
