"""The transactions of one producer: its states as a table, and its requests. There is no I/O here.

A step that the table lacks is a mistake of the application, for example a second ``begin``. It changes nothing. Only
``FAIL`` is possible from every state, and nothing leads out of ``FATAL_ERROR`` (KIP-98, KIP-360).

``TransactionalProducer`` drives the ``TransactionManager``. One request is in flight at a time. Pending ones are sent
in this order: a producer ID, partitions, offsets, the end of the transaction once all batches are settled, and then a
higher epoch if one is needed (KIP-360). FindCoordinator comes before whatever needs the coordinator.

There are two generations of transactions. A transaction keeps the one in which it began, which the level of
``transaction.version`` decides (KIP-890):

- In the old one AddPartitionsToTxn and AddOffsetsToTxn announce what takes part, and the producer keeps its epoch.
- In the new one Produce and TxnOffsetCommit announce it by themselves. The response to EndTxn has the next epoch.

Times are microseconds of one monotonic clock.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from reference_broker.client import transaction_requests as requests
from reference_broker.client.api_versions import RAISES_EPOCH, Announced
from reference_broker.client.group_requests import GroupCoordinator, GroupRequest, MemberIdentity
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit, commit_errors
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_requests import (
    TRANSACTION_KEY_TYPE,
    ProducerIdentity,
    Remedy,
    RequestKind,
    TransactionError,
    remedy_of,
    reported_error,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode


class State(Enum):
    """The state of a transactional producer. In ABORTABLE_ERROR only an abort is possible."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in an error that an abort cures"
    FATAL_ERROR = "in an error that nothing cures"


class Step(Enum):
    """The transitions between states. The application takes the first four. Responses bring the others."""

    INIT = "init"
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"
    INITIALIZED = "got a producer ID and epoch"
    ENDED = "ended the transaction"
    ENDED_AND_RAISES_EPOCH = "ended the transaction, and requests the next epoch"
    FAIL_ABORTABLY = "failed; an abort helps"
    FAIL = "failed for good"


class IllegalStepError(Exception):
    """The application requested a step that is not possible in this state. Nothing has changed."""

    def __init__(self, state: State, step: Step) -> None:
        super().__init__(f"{step.value} is not possible: the producer is {state.value}")
        self.state = state
        self.step = step


TRANSITIONS: Final[Mapping[tuple[State, Step], State]] = MappingProxyType(
    {
        (State.UNINITIALIZED, Step.INIT): State.INITIALIZING,
        (State.INITIALIZING, Step.INITIALIZED): State.READY,
        (State.INITIALIZING, Step.FAIL_ABORTABLY): State.ABORTABLE_ERROR,
        (State.READY, Step.BEGIN): State.IN_TRANSACTION,
        (State.IN_TRANSACTION, Step.COMMIT): State.COMMITTING,
        (State.IN_TRANSACTION, Step.ABORT): State.ABORTING,
        (State.IN_TRANSACTION, Step.FAIL_ABORTABLY): State.ABORTABLE_ERROR,
        (State.COMMITTING, Step.ENDED): State.READY,
        (State.COMMITTING, Step.ENDED_AND_RAISES_EPOCH): State.INITIALIZING,
        (State.COMMITTING, Step.FAIL_ABORTABLY): State.ABORTABLE_ERROR,
        (State.ABORTING, Step.ENDED): State.READY,
        (State.ABORTING, Step.ENDED_AND_RAISES_EPOCH): State.INITIALIZING,
        (State.ABORTING, Step.FAIL_ABORTABLY): State.ABORTING,
        (State.ABORTABLE_ERROR, Step.ABORT): State.ABORTING,
        (State.ABORTABLE_ERROR, Step.FAIL_ABORTABLY): State.ABORTABLE_ERROR,
        **{(state, Step.FAIL): State.FATAL_ERROR for state in State},
    }
)


def after(state: State, step: Step) -> State:
    """Return the state after a step.

    :raises IllegalStepError: the table has no such step.
    """
    transition = TRANSITIONS.get((state, step))
    if transition is None:
        raise IllegalStepError(state, step)
    return transition


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The configuration of one producer's transactions. A transaction that is open for longer than
    ``transaction_timeout_us`` is aborted by its coordinator (KIP-98)."""

    transactional_id: str
    transaction_timeout_us: int = 60_000_000
    backoff_us: int = 100_000
    request_timeout_us: int = 5_000_000


class Outcome(Enum):
    """The outcome of a transaction, as far as this producer can know. FAILED means that it did not end as requested:
    a transaction that was to be committed is aborted. UNKNOWN means that either may be true."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class OffsetsSend:
    """Offsets of a group that take part in the transaction."""

    identity: MemberIdentity
    left: dict[TopicPartition, OffsetToCommit]
    """Offsets without a response yet."""
    is_added: bool
    error: Error | int | None = None
    """Set if they will not be committed."""

    @property
    def is_done(self) -> bool:
        return not self.left and self.error is None


FIRST_PARTITIONS_BACKOFF_US: Final = 20_000
"""The wait while the markers of the transaction before are still being written, as in Apache Kafka's producer."""

_NOT_ENDED: Final = (
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.invalid_txn_state,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.transaction_abortable,
    ErrorCode.unknown_producer_id,
)
"""Errors with which a coordinator refuses an EndTxn and does nothing."""

_KEYS: Final = {
    RequestKind.INIT: ApiKey.INIT_PRODUCER_ID,
    RequestKind.ADD_PARTITIONS: ApiKey.ADD_PARTITIONS_TO_TXN,
    RequestKind.ADD_OFFSETS: ApiKey.ADD_OFFSETS_TO_TXN,
    RequestKind.COMMIT_OFFSETS: ApiKey.TXN_OFFSET_COMMIT,
    RequestKind.COMMIT: ApiKey.END_TXN,
    RequestKind.ABORT: ApiKey.END_TXN,
}


@dataclass(slots=True)
class TransactionManager:
    """The state of one producer's transactions."""

    config: TransactionConfig
    announced: Announced = field(default_factory=Announced)
    state: State = State.UNINITIALIZED
    identity: ProducerIdentity = field(default_factory=ProducerIdentity)
    """The producer ID and epoch in its requests and batches."""
    error: TransactionError | None = None
    """The error that led to an error state."""
    outcome: Outcome | None = None
    """The outcome of the last transaction that was to end, None while that is in progress."""
    adds_by_itself: bool = False
    coordinator: GroupCoordinator = field(init=False)
    _groups: dict[str, GroupCoordinator] = field(default_factory=dict)
    _in_flight: RequestKind | None = None
    _sent_to: GroupCoordinator | None = None
    _sent_to_node: NodeAddress | None = None
    _retry_at_us: int = 0
    _needs_epoch: bool = False
    _is_started: bool = False
    """Whether the coordinator may know of the transaction."""
    _end_was_sent: bool = False
    _end_is_uncertain: bool = False
    """Whether an EndTxn may have been carried out although no response confirmed it."""
    _has_to_end: bool = False
    _new: set[TopicPartition] = field(default_factory=set)
    _added: set[TopicPartition] = field(default_factory=set)
    _offsets: deque[OffsetsSend] = field(default_factory=deque)

    def __post_init__(self) -> None:
        config = self.config
        self.coordinator = GroupCoordinator(
            config.transactional_id,
            backoff_us=config.backoff_us,
            request_timeout_us=config.request_timeout_us,
            key_type=TRANSACTION_KEY_TYPE,
        )

    # -- what the application does ------------------------------------------------------------------------------

    def init(self) -> None:
        """Request a producer ID. Older producers with the same transactional ID are fenced.

        This and the next methods raise IllegalStepError, and TransactionError if an error prevents the step.
        """
        self._raise_error(but_abortable=False)
        self._step(Step.INIT)

    def begin(self) -> None:
        """Begin a transaction. Nothing is sent for it yet."""
        self._raise_error(but_abortable=False)
        self._step(Step.BEGIN)
        self.outcome = None

    def commit(self) -> None:
        """Commit, once all batches and offsets are settled."""
        self._raise_error(but_abortable=False)
        self._step(Step.COMMIT)
        self._begin_end()

    def abort(self) -> None:
        """Abort. Offsets and partitions that were not sent are forgotten."""
        self._raise_error(but_abortable=True)
        self._step(Step.ABORT)
        self.error = None
        self._new.clear()
        self._drop_offsets(ErrorCode.operation_not_attempted)
        self._begin_end()

    def add(self, partition: TopicPartition) -> None:
        """Let a partition take part in the transaction, before something is sent to it."""
        self._raise_error(but_abortable=False)
        assert self.state is State.IN_TRANSACTION, f"a send while the producer is {self.state.value}"
        if self.adds_by_itself:
            self._added.add(partition)
            self._is_started = True
        elif partition not in self._added:
            self._new.add(partition)

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetToCommit], identity: MemberIdentity) -> OffsetsSend:
        """Let these offsets of the group take effect if and when the transaction is committed."""
        self._raise_error(but_abortable=False)
        assert self.state is State.IN_TRANSACTION, f"offsets while the producer is {self.state.value}"
        send = OffsetsSend(identity, dict(offsets), self.adds_by_itself)
        self._is_started = self._is_started or self.adds_by_itself
        if offsets:
            self._offsets.append(send)
        return send

    def may_send(self, partition: TopicPartition) -> bool:
        """Return whether batches of the transaction may go to this partition now."""
        return partition in self._added and self.state in (State.IN_TRANSACTION, State.COMMITTING)

    @property
    def has_failed(self) -> bool:
        """Whether the transaction cannot be committed any more."""
        return self.state in (State.ABORTABLE_ERROR, State.ABORTING, State.FATAL_ERROR)

    @property
    def sends_offsets(self) -> bool:
        """Whether offsets wait for their response."""
        return bool(self._offsets)

    def batch_failed(self, error: Error | int) -> None:
        """Record that a batch of the transaction was abandoned."""
        self._fail(RequestKind.PRODUCE, error)

    def batch_dropped(self) -> None:
        """Record that a numbered batch is not sent any more, because the transaction has failed. Its sequence is
        missing now, so the next transaction needs another epoch."""
        self._needs_epoch = self._needs_epoch or not self.adds_by_itself

    def _begin_end(self) -> None:
        self.outcome, self._has_to_end = None, True
        self._end_was_sent = self._end_is_uncertain = False

    @property
    def outcome_if_given_up(self) -> Outcome:
        """The outcome if nothing more is sent. Without an EndTxn a transaction is aborted in the end."""
        return Outcome.UNKNOWN if self._end_was_sent else Outcome.FAILED

    def _raise_error(self, but_abortable: bool) -> None:
        if self.error is not None and not (but_abortable and self.error.is_abortable):
            raise self.error

    def _step(self, step: Step) -> None:
        self.state = after(self.state, step)

    # -- requests -----------------------------------------------------------------------------------------------

    def wake_at_us(self, is_flushed: bool) -> int | None:
        """The time at which ``next_request`` may return something even if nothing else happens before."""
        request_kind = self._next(is_flushed)
        if self._in_flight is not None or request_kind is None:
            return None
        coordinator = self._coordinator_for(request_kind)
        if coordinator.node is None:
            return max(self._retry_at_us, coordinator.retry_at_us)
        return self._retry_at_us

    def next_request(self, now_us: int, is_flushed: bool) -> GroupRequest | None:
        """Return what to send now, if anything. ``is_flushed`` says that no batch waits for its end. Exactly one of
        ``responded`` and ``failed`` must follow it."""
        if self._in_flight is not None or now_us < self._retry_at_us:
            return None
        self._end_unsent(is_flushed)
        request_kind = self._next(is_flushed)
        if request_kind is None:
            return None
        coordinator = self._coordinator_for(request_kind)
        self._sent_to, self._sent_to_node = coordinator, coordinator.node
        if coordinator.node is None:
            request = coordinator.next_request(now_us)
            self._in_flight = RequestKind.FIND_COORDINATOR if request is not None else None
            return request
        self._in_flight = request_kind
        return self._request(request_kind, coordinator.node)

    def _next(self, is_flushed: bool) -> RequestKind | None:
        if self.state is State.INITIALIZING:
            return RequestKind.INIT
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            if self._new:
                return RequestKind.ADD_PARTITIONS
            if self._offsets:
                return RequestKind.COMMIT_OFFSETS if self._offsets[0].is_added else RequestKind.ADD_OFFSETS
        if self.state is State.COMMITTING and is_flushed:
            return RequestKind.COMMIT
        return RequestKind.ABORT if self.state is State.ABORTING and is_flushed else None

    def _end_unsent(self, is_flushed: bool) -> None:
        """End a transaction of which the coordinator knows nothing. Nothing is sent."""
        nothing_waits = is_flushed and not self._new and not self._offsets
        if self.state in (State.COMMITTING, State.ABORTING) and nothing_waits and not self._is_started:
            self._ended(ProducerIdentity())

    def _coordinator_for(self, request_kind: RequestKind) -> GroupCoordinator:
        if request_kind is not RequestKind.COMMIT_OFFSETS:
            return self.coordinator
        group_id, config = self._offsets[0].identity.group_id, self.config
        return self._groups.setdefault(
            group_id,
            GroupCoordinator(group_id, backoff_us=config.backoff_us, request_timeout_us=config.request_timeout_us),
        )

    def _request(self, request_kind: RequestKind, node: NodeAddress) -> GroupRequest:
        key = _KEYS[request_kind]
        version = self.announced.version(node.host, node.port, key, self.adds_by_itself)
        return GroupRequest(int(key), version, self._body(request_kind, version), self.config.request_timeout_us, node)

    def _body(self, request_kind: RequestKind, version: int) -> object:
        own, producer = self.config.transactional_id, self.identity
        if request_kind is RequestKind.INIT:
            current = producer if version >= RAISES_EPOCH else ProducerIdentity()
            return requests.init_request(own, self.config.transaction_timeout_us, current)
        if request_kind is RequestKind.ADD_PARTITIONS:
            return requests.add_partitions_request(own, producer, sorted(self._new))
        if request_kind is RequestKind.ADD_OFFSETS:
            return requests.add_offsets_request(own, producer, self._offsets[0].identity.group_id)
        if request_kind is RequestKind.COMMIT_OFFSETS:
            return requests.commit_offsets_request(own, producer, self._offsets[0].identity, self._offsets[0].left)
        self._end_was_sent = True
        return requests.end_request(own, producer, request_kind is RequestKind.COMMIT)

    # -- responses -----------------------------------------------------------------------------------------------

    def responded(self, now_us: int, body: object) -> None:
        """Apply the response to the request in flight."""
        request_kind, self._in_flight = self._in_flight, None
        assert self._sent_to is not None, "a response to no request"
        if request_kind is RequestKind.FIND_COORDINATOR:
            self._sent_to.responded(now_us, body)
            if self._sent_to.failure is not None:
                failure, self._sent_to.failure = self._sent_to.failure, None
                self._fail(request_kind, failure)
        elif request_kind is RequestKind.INIT:
            self._initialized(now_us, requests.initialized(body))
        elif request_kind is RequestKind.ADD_PARTITIONS:
            self._partitions_added(now_us, requests.added(body))
        elif request_kind is RequestKind.ADD_OFFSETS:
            self._offsets_added(now_us, requests.offsets_added(body))
        elif request_kind is RequestKind.COMMIT_OFFSETS:
            self._offsets_committed(now_us, commit_errors(body))
        else:
            assert request_kind is not None, "a response to no request"
            found = requests.ended(body)
            if isinstance(found, ProducerIdentity):
                self._ended(found)
            else:
                self._refused(now_us, request_kind, found)

    def failed(self, now_us: int) -> None:
        """Record that the request in flight got no response. It is sent again."""
        request_kind, self._in_flight = self._in_flight, None
        assert self._sent_to is not None, "a failure of no request"
        if request_kind is RequestKind.FIND_COORDINATOR:
            self._sent_to.failed(now_us)
        else:
            self._sent_to.lose(now_us, self._sent_to_node)
            self._again(now_us, request_kind)

    def _again(self, now_us: int, request_kind: RequestKind | None) -> None:
        self._retry_at_us = now_us + self.config.backoff_us
        self._end_is_uncertain = self._end_is_uncertain or request_kind in (RequestKind.COMMIT, RequestKind.ABORT)

    def _initialized(self, now_us: int, result: ProducerIdentity | Error | int) -> None:
        if not isinstance(result, ProducerIdentity):
            self._refused(now_us, RequestKind.INIT, result)
            return
        self.identity, self._needs_epoch = result, False
        self.adds_by_itself = self.announced.adds_by_itself
        self._step(Step.INITIALIZED)

    def _partitions_added(self, now_us: int, errors: Mapping[TopicPartition, Error | int]) -> None:
        worst = _worst(RequestKind.ADD_PARTITIONS, errors.values())
        if worst is None:
            self._new -= errors.keys()
            self._added |= errors.keys()
            self._is_started = True
            return
        self._refused(now_us, RequestKind.ADD_PARTITIONS, worst)
        if worst is ErrorCode.concurrent_transactions and not self._added:
            self._retry_at_us = now_us + min(self.config.backoff_us, FIRST_PARTITIONS_BACKOFF_US)

    def _offsets_added(self, now_us: int, error: Error | int) -> None:
        if error:
            self._refused(now_us, RequestKind.ADD_OFFSETS, error)
            return
        self._is_started = True
        if self._offsets:
            self._offsets[0].is_added = True

    def _offsets_committed(self, now_us: int, errors: Mapping[TopicPartition, Error | int]) -> None:
        if not self._offsets:  # An abort has dropped them meanwhile.
            return
        send = self._offsets[0]
        for partition, error in errors.items():
            if not error:
                send.left.pop(partition, None)
        worst = _worst(RequestKind.COMMIT_OFFSETS, errors.values())
        if worst is not None:
            self._refused(now_us, RequestKind.COMMIT_OFFSETS, worst)
        elif not send.left:
            self._offsets.popleft()
        else:
            self._retry_at_us = now_us + self.config.backoff_us  # The response left some out.

    def _ended(self, following: ProducerIdentity) -> None:
        if following.is_known:
            self.identity = following
        # An epoch of the new generation must never have been one of the old one (KIP-890).
        upgrades = self.announced.adds_by_itself and not self.adds_by_itself
        self._needs_epoch = self._needs_epoch or upgrades or not self.identity.is_known
        self.adds_by_itself = self.announced.adds_by_itself
        self.outcome, self.error = Outcome.OK, None
        self._is_started = self._has_to_end = False
        self._new.clear()
        self._added.clear()
        self._groups.clear()
        self._step(Step.ENDED_AND_RAISES_EPOCH if self._needs_epoch else Step.ENDED)

    # -- errors -------------------------------------------------------------------------------------------------

    def _refused(self, now_us: int, request_kind: RequestKind, error: Error | int) -> None:
        remedy = remedy_of(request_kind, error)
        if remedy in (Remedy.RETRY, Remedy.FIND_COORDINATOR):
            self._again(now_us, request_kind)
            if remedy is Remedy.FIND_COORDINATOR and self._sent_to is not None:
                self._sent_to.lose(now_us, self._sent_to_node)
        else:
            self._fail(request_kind, error)

    def _fail(self, request_kind: RequestKind, error: Error | int) -> None:
        """Go to an error state. A response that comes after a fatal error changes nothing more."""
        if self.state in (State.FATAL_ERROR, State.READY, State.UNINITIALIZED):
            return
        remedy = remedy_of(request_kind, error)
        if remedy is Remedy.ABORT_AND_RAISE_EPOCH:
            self.batch_dropped()
        if remedy.is_fatal or (self.error is None and self.state is not State.ABORTING):
            self.error = TransactionError(reported_error(error, request_kind), remedy, request_kind)
        self._drop_offsets(error)
        if self._has_to_end and (remedy.is_fatal or self.state is State.COMMITTING):
            self.outcome, self._has_to_end = self._outcome_of(request_kind, error), False
        self._step(Step.FAIL if remedy.is_fatal else Step.FAIL_ABORTABLY)

    def _outcome_of(self, request_kind: RequestKind, error: Error | int) -> Outcome:
        """A refusal that says that the transaction is not this producer's any more proves that it did not end as
        requested, unless an earlier EndTxn may have been carried out."""
        is_proof = request_kind not in (RequestKind.COMMIT, RequestKind.ABORT) or error in _NOT_ENDED
        return Outcome.FAILED if is_proof and not self._end_is_uncertain else Outcome.UNKNOWN

    def _drop_offsets(self, error: Error | int) -> None:
        for offset in self._offsets:
            offset.error = error
        self._offsets.clear()


def _worst(request_kind: RequestKind, errors: Iterable[Error | int]) -> Error | int | None:
    """The error that decides what follows: a fatal one before one that an abort cures, before one to be retried. None
    if there is no error."""
    order = list(Remedy)
    found = [error for error in errors if error]
    return max(found, key=lambda each: order.index(remedy_of(request_kind, each)), default=None)
