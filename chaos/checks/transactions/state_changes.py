"""State changes of transactional IDs: what is committed, what the coordinator has, and what its responses and markers
say.

``transaction_state.py`` replays the committed values from the bytes of ``__transaction_state``.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.check import Check, CheckContext, Inspection, StateCheck
from chaos.checks.history import OFFSETS_TOPIC, TopicPartition
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replication.replica_view import offsets_partition
from chaos.checks.transactions.transaction_state import (
    EMPTY,
    FIRST_VALUE,
    ONGOING,
    OUTCOMES,
    REMOVED,
    STATE_TOPIC,
    STATES,
    StatePartition,
    StateValue,
    wrong_step,
)
from reference_broker.core.events import Closed, Effect, Event, Reply, Request, Send
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from reference_broker.core.node import Node

RETURNS_OWNER_FROM = 5
"""The version of EndTxn from which the response has the next producer ID and epoch."""
FOR_BROKERS_FROM = 4
"""The version of AddPartitionsToTxn from which a request has several transactions."""


class TransactionsConsistent(Check):
    """transactions-consistent: a coordinator's state of its transactional IDs does not contradict itself.

    After each event the check calls the coordinator's own validation (``TransactionCoordinator.validate``).

    The judged code is its own judge here. That can hide no violation from clients, because it only adds to the checks
    of clients' observations.
    """

    guarantee = "transactions-consistent"
    inspection = Inspection.AFTER_EVENTS

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

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.transactions.on_value_committed.append(self.value_committed)

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


class CoordinatorHasCommitted(StateCheck):
    """transactions-consistent (X-2): a coordinator that has loaded a partition has the last committed value of each
    transactional ID.

    The check compares all IDs when the first value is committed after a load, and then each ID whose value is
    committed. While a step is being written, the coordinator may have the previous value.
    """

    guarantee = "transactions-consistent"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.transactions.on_value_committed.append(self.value_committed)
        self._changed: dict[str, StatePartition] = {}
        self._judged: dict[tuple[int, int], object] = {}
        """by node and partition: the coordinator's shard of which all IDs were compared"""

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
            shard = next((each for each in node.broker.transactions.active() if each.index == index), None)
            if shard is None or shard.led.log.high_watermark < shard.loaded_end:
                continue
            ids = [transactional_id for transactional_id, of in changed.items() if of is partition]
            if self._judged.get((node_id, index)) is not shard:
                self._judged[node_id, index] = shard
                ids = list(partition.values)
            for transactional_id in ids:
                self.evidence += 1
                value = partition.values[transactional_id][-1]
                wrong = _difference(shard.entries.get(transactional_id), value)
                if wrong:
                    self.violated(
                        at_us, f"node {node_id} has {transactional_id} {wrong}, and {value.named} is committed last"
                    )


def _difference(metadata: Any, committed: StateValue) -> str:
    """Return how the coordinator's ``TransactionMetadata`` (None if it has none) differs from the committed value, or
    nothing."""
    if metadata is not None and metadata.pending_state is not None:
        return ""
    if committed.state == REMOVED or metadata is None:
        return "" if committed.state == REMOVED and metadata is None else f"as {metadata and metadata.current}"
    current = metadata.current
    current_fields = (
        *(current.producer_id, current.producer_epoch, current.timeout_ms, current.state.value),
        *(frozenset(current.partitions), current.updated_ms, current.started_ms, current.next_producer_id),
    )
    committed_fields = (
        *(committed.producer_id, committed.epoch, committed.timeout_ms, STATES[committed.state]),
        *(committed.partitions, committed.updated_ms, committed.started_ms, committed.next_producer_id),
    )
    return "" if current_fields == committed_fields else f"as {current}"


OF_COORDINATOR = (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN)
"""The APIs with which clients change a transactional ID."""
NOT_THE_OWNER = (
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
)
"""Errors by which a coordinator rejects a producer that does not own the transactional ID."""


class _Response(NamedTuple):
    """The part of a response about one transactional ID."""

    api_key: int
    requested_us: int
    transactional_id: str
    producer_id: int
    """the one in the response of InitProducerId, else that of the request"""
    epoch: int
    error: int = ErrorCode.none
    partitions: frozenset[TopicPartition] = frozenset()
    """those that AddPartitionsToTxn or AddOffsetsToTxn added"""
    commits: bool = False
    """whether EndTxn commits"""
    next_owner: tuple[int, int] | None = None
    """the producer ID and epoch for the next transaction that EndTxn 5 returned"""


class EffectsReplicated(StateCheck):
    """transactions-consistent (X-2, X-3): no step of a transactional ID has an effect before its value is committed.

    A response of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn or EndTxn without an error is sent only when a
    committed value agrees with it that was current at some time since the request. Repeated ends have the outcome of
    the first. WriteTxnMarkers is sent when the decision is committed, for its partitions, and with the leader epoch of
    the coordinator (X-6).

    AddPartitionsToTxn, AddOffsetsToTxn and EndTxn do not reject a producer that was the owner all the time since the
    request (NOT_THE_OWNER), and EndTxn does not reject the end of a transaction that was open all that time
    (INVALID_TXN_STATE).

    A coordinator that does not know yet that it was replaced may return an old state, and is not judged. Neither is an
    ID after a loss of committed values of its partition (E-7).
    """

    guarantee = "transactions-consistent"
    acts_on = (*OF_COORDINATOR, Closed, type(None), (Send, ApiKey.WRITE_TXN_MARKERS))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[tuple[Any, int]]()
        """bodies and times of requests"""
        self._responses: list[_Response] = []
        self._sent: list[Any] = []
        """bodies of WriteTxnMarkers; as the responses, those of the current event, which the view has not followed
        yet"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        self._responses, self._sent = [], []
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key in OF_COORDINATOR:
            self._pending.add(node_id, event, (event.body, at_us))
        for effect in effects:
            if type(effect) is Send and effect.api_key == ApiKey.WRITE_TXN_MARKERS:
                self._sent.append(effect.body)
            elif type(effect) is Reply and effect.api_key in OF_COORDINATOR:
                requested = self._pending.pop(node_id, effect)
                if requested is not None:
                    self._responses += _responses_in(node, *requested, effect)
        if self._responses or self._sent:
            self.context.replicas.after_event(node, self._judge)

    def _judge(self, at_us: int, node: "Node") -> None:
        responses, sent, self._responses, self._sent = self._responses, self._sent, [], []
        for response in responses:
            self._judge_response(at_us, node, response)
        for body in sent:
            for marker in body.markers:
                self._judge_marker(at_us, node, marker)

    def _judge_response(self, at_us: int, node: "Node", response: _Response) -> None:
        partition = self.transactions.ids.get(response.transactional_id)
        if partition is not None and partition.leader[1] != node.broker.node_id:
            return
        if self.transactions.has_lost(response.transactional_id):
            return  # E-7: no replica had kept the records of its coordinator.
        self.evidence += 1
        wrong = self._wrong_error(response) if response.error else self._wrong_success(response)
        if wrong:
            error = f"error {error_name(response.error)}" if response.error else "no error"
            self.violated(
                at_us,
                f"node {node.broker.node_id} returned {api_name(response.api_key)} of {response.transactional_id} "
                f"(producer {response.producer_id}, epoch {response.epoch}) with {error}, and {wrong}",
            )

    def _wrong_success(self, response: _Response) -> str:
        """Return which effect of the response is not committed, or nothing."""
        since = self.transactions.since(response.transactional_id, response.requested_us)
        current = [each for each in since if each.state != REMOVED]
        own = [each for each in current if (each.producer_id, each.epoch) == (response.producer_id, response.epoch)]
        values = ", ".join(each.named for each in current) or "nothing"
        if response.api_key == ApiKey.INIT_PRODUCER_ID:
            is_committed = any(each.state == EMPTY for each in own)
            return "" if is_committed else f"no value with this owner is committed, only {values} (X-2)"
        if response.api_key != ApiKey.END_TXN:
            is_committed = any(each.state == ONGOING and each.partitions >= response.partitions for each in own)
            return "" if is_committed else f"{sorted(response.partitions)} are not committed, only {values} (X-2)"
        decided = [each for each in current if OUTCOMES.get(each.state) is response.commits]
        if not decided:
            decision = "commit" if response.commits else "abort"
            return f"no decision to {decision} is committed, only {values} (X-3)"
        next_owners = [
            (each.producer_id, each.epoch) if each.next_producer_id < 0 else (each.next_producer_id, 0)
            for each in decided
        ]
        if response.next_owner is not None and response.next_owner not in next_owners:
            returned = f"producer ID and epoch {response.next_owner}"
            return f"it returned {returned}, and {next_owners} are committed (KIP-890)"
        return ""

    def _wrong_error(self, response: _Response) -> str:
        """Return why the producer must not get this error, or nothing."""
        current = self.transactions.since(response.transactional_id, response.requested_us)
        if not current:
            return ""
        is_owner = all((each.producer_id, each.epoch) == (response.producer_id, response.epoch) for each in current)
        if is_owner and response.error in NOT_THE_OWNER:
            return "that producer is the owner (X-1)"
        is_open = all(each.state == ONGOING for each in current)
        if is_owner and is_open and response.error == ErrorCode.invalid_txn_state:
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
        partitions = {(str(topic.name), int(index)) for topic in marker.topics for index in topic.partition_indexes}
        early = [each for each in partitions if (producer_id, epoch, commits, each) not in self.transactions.decided]
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


def _responses_in(node: "Node", body: Any, requested_us: int, reply: Reply) -> Iterator[_Response]:
    """Yield the part of the response to this request about each transactional ID."""
    if reply.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        yield from _additions_in(body, requested_us, reply)
        return
    response: Any = reply.body
    error = int(response.error_code)
    is_init = reply.api_key == ApiKey.INIT_PRODUCER_ID
    if not body.transactional_id or (is_init and error):
        return
    owner = response if is_init else body
    about_id = _Response(
        *(reply.api_key, requested_us, str(body.transactional_id)),
        *(int(owner.producer_id), int(owner.producer_epoch), error),
    )
    if error or is_init:
        yield about_id
    elif reply.api_key == ApiKey.ADD_OFFSETS_TO_TXN:
        count = len(node.broker.quorum_node.loader.image.topics[OFFSETS_TOPIC].partitions)
        yield about_id._replace(partitions=frozenset([(OFFSETS_TOPIC, offsets_partition(str(body.group_id), count))]))
    else:
        has_owner = reply.api_version >= RETURNS_OWNER_FROM
        next_owner = (int(response.producer_id), int(response.producer_epoch)) if has_owner else None
        yield about_id._replace(commits=bool(body.committed), next_owner=next_owner)


def _additions_in(body: Any, requested_us: int, reply: Reply) -> Iterator[_Response]:
    """Yield for each transaction of AddPartitionsToTxn its errors, and the partitions that were added or that belong to
    it already."""
    response: Any = reply.body
    results = {str(each.transactional_id): each for each in response.results_by_transaction}
    for transaction in body.transactions:
        transactional_id = str(transaction.transactional_id)
        result = results.get(transactional_id if reply.api_version >= FOR_BROKERS_FROM else "")
        errors = {
            (str(topic.name), int(of_partition.partition_index)): int(of_partition.partition_error_code)
            for topic in (() if result is None else result.topic_results)
            for of_partition in topic.results_by_partition
        }
        about_id = _Response(
            *(reply.api_key, requested_us, transactional_id),
            *(int(transaction.producer_id), int(transaction.producer_epoch)),
        )
        for error in sorted({error for error in errors.values() if error}):
            yield about_id._replace(error=error)
        added = frozenset(partition for partition, error in errors.items() if not error)
        if added:
            yield about_id._replace(partitions=added)
