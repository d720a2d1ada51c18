"""Requests about offsets, independent of versions: OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

A commit is validated first: whether the member may commit, and which of its offsets are accepted. The rules are those
of Kafka's OffsetMetadataManager for classic groups, and of the metadata epoch (M-7, M-11). Then the accepted offsets
are written in one batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.log import (
    NO_PRODUCER,
    KeyAndValue,
    TransactionProducer,
    client_error,
    first_error,
)
from reference_broker.coordination.record_fields import MAX_TEXT_BYTES
from reference_broker.groups.committed_offsets import (
    MAX_TIMESTAMP_MS,
    NO_METADATA_EPOCH,
    NO_TIMESTAMP,
    CommitOffset,
    OffsetKey,
)
from reference_broker.groups.group import GroupState
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard, OffsetsWrite
from reference_broker.groups.group_metadata_manager import GroupMetadataManager
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.records import CLASSIC_VALUE, EPOCH_VALUE, offset_key, offset_value
from reference_broker.metadata.features import sends_metadata_epoch
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.coroutines import Future, completed, run_coroutine
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.slicing import (
    COMMITTED_OFFSETS_PER_SLICE,
    DELETED_OFFSETS_PER_SLICE,
    Sliced,
    SliceQueue,
    in_batches,
    run_to_end,
    slices_run_by,
)
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import DraftError, Error, ErrorCode

BROKERS_RETENTION = -1


@dataclass(frozen=True, slots=True)
class RequestedOffset:
    """One partition of an OffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    metadata_epoch: int | None = None
    """None means that the version of the request has no such field (M-11)."""


@dataclass(frozen=True, slots=True)
class OffsetsTransaction:
    """The transaction of a TxnOffsetCommit."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    api_version: int
    """The version of the request. From 4 on the client supports TRANSACTION_ABORTABLE, and from 5 on the partition of
    the offsets topic is added to the transaction (KIP-890)."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """OffsetCommit, and TxnOffsetCommit if it has a transaction."""

    group_id: str
    generation: int
    """Tools and consumers that assign themselves send -1, with an empty member ID."""
    member_id: str
    group_instance_id: str | None
    offsets: tuple[RequestedOffset, ...]
    knows_missing_groups: bool = False
    """The client supports GROUP_ID_NOT_FOUND (version 9 on). Others get ILLEGAL_GENERATION."""
    retention_ms: int = BROKERS_RETENTION
    """Replaces ``offsets.retention.minutes`` for these offsets, if it is not BROKERS_RETENTION (versions 2 to 4)."""
    transaction: OffsetsTransaction | None = None


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """One partition of the response to OffsetFetch. ``commit`` is None if nothing is committed."""

    topic: str
    partition: int
    commit: CommitOffset | None
    is_unstable: bool = False
    """The client wants stable offsets, and an open transaction may change this one. Then there is no ``commit``."""


CommitVerified: TypeAlias = Callable[[Error], object]
"""Called with NONE if the transaction is open with the partition at this moment."""


class CommitVerifier(Protocol):
    """Verifies with the coordinator of a transaction that it is open (KIP-890)."""

    def verify(self, led: Partition, transaction: OffsetsTransaction, verified: CommitVerified) -> None:
        """Call ``verified`` once, maybe before this returns. NONE is true only during the call: a marker may come at
        any time. No request is sent where the log knows that the transaction is open. The errors are those of
        TxnOffsetCommit."""
        ...


Committed: TypeAlias = Callable[[list[Error]], None]
"""Called with an error for each offset of the request."""
Fetched: TypeAlias = Callable[[Error, list[FetchedOffset]], None]
"""Called with an error for the whole group, or the offsets."""
Deleted: TypeAlias = Callable[[Error, list[Error]], None]
"""Called with an error for the whole group, or one for each partition of the request."""


@dataclass(slots=True)
class CommitValidation:
    """What is known of the offsets of one request so far: an error for each, and records of the accepted ones (Kafka's
    OffsetMetadataManager.validateOffsetCommit)."""

    shard: GroupCoordinatorShard
    request: CommitRequest
    image: MetadataImage
    """The metadata when the request came."""
    with_epoch: bool
    """Whether metadata epochs were checked and are stored."""
    errors: list[Error] = field(default_factory=list)
    accepted: dict[OffsetKey, tuple[CommitOffset, KeyAndValue]] = field(default_factory=dict)

    def refused(self, error: Error) -> list[Error]:
        """Return the errors if all offsets are refused with this one. In a transaction unknown partitions come first,
        as in Kafka."""
        unknown = ErrorCode.unknown_topic_or_partition
        if self.request.transaction is None:
            return [error] * len(self.request.offsets)
        return [each if each is unknown else error for each in self.errors]

    def validate_again(self, image: MetadataImage) -> None:
        """Validate again what may have changed in the events since."""
        if self.image is not image:
            self._refuse_missing(image)
        if self.with_epoch:
            self._refuse_overtaken()

    def _refuse_missing(self, image: MetadataImage) -> None:
        """Refuse the offsets of topics that were deleted meanwhile. Offsets removed with a topic must not come back."""
        for at, requested in enumerate(self.request.offsets):
            before = self.image.topics.get(requested.topic)
            is_unchanged = before is not None and image.topics.get(requested.topic) is before
            # Decision offset-commit-topic-gone
            if not self.errors[at] and not is_unchanged and not exists(image, requested.topic, requested.partition):
                self._refuse(at, ErrorCode.unknown_topic_or_partition)

    def _refuse_overtaken(self) -> None:
        """Refuse the offsets whose metadata epoch is now older than that of the last commit (M-7)."""
        for at, requested in enumerate(self.request.offsets):
            if requested.metadata_epoch is not None and not self.errors[at]:
                key = OffsetKey(self.request.group_id, requested.topic, requested.partition)
                error = epoch_refusal(requested.metadata_epoch, self.shard.offsets.latest(key))
                if error:  # Decision offset-commit-overtaken
                    self._refuse(at, error)

    def _refuse(self, at: int, error: Error) -> None:
        requested = self.request.offsets[at]
        self.errors[at] = error
        self.accepted.pop(OffsetKey(self.request.group_id, requested.topic, requested.partition), None)


def membership_error(shard: GroupCoordinatorShard, request: CommitRequest) -> Error:
    """Return the error if the member may not commit now."""
    group = shard.groups.get(request.group_id)
    if group is None:
        if request.generation < 0:
            return ErrorCode.none
        return ErrorCode.group_id_not_found if request.knows_missing_groups else ErrorCode.illegal_generation
    if request.transaction is not None:
        return group.check_transactional_commit(request.member_id, request.group_instance_id, request.generation)
    return group.check_commit(request.member_id, request.group_instance_id, request.generation)


def validate_offsets(
    shard: GroupCoordinatorShard,
    request: CommitRequest,
    image: MetadataImage,
    config: BrokerConfig,
    now_ms: int,
    *,
    with_epoch: bool,
) -> tuple[list[Error], list[CommitOffset]]:
    """Return an error for each offset, and the commits of those that are accepted. If a partition is named twice its
    last offset counts. ``with_epoch`` says whether metadata epochs are checked and stored."""
    errors: list[Error] = []
    accepted: dict[OffsetKey, CommitOffset] = {}
    for requested in request.offsets:
        key = OffsetKey(request.group_id, requested.topic, requested.partition)
        epoch = requested.metadata_epoch if with_epoch else None
        error = _refusal(image, config, requested)
        if not error and epoch is not None:
            error = epoch_refusal(epoch, accepted.get(key) or shard.offsets.latest(key))
        errors.append(error)
        if not error:
            accepted[key] = _commit(requested, epoch, now_ms, request.retention_ms)
    return errors, list(accepted.values())


def _commit(requested: RequestedOffset, epoch: int | None, now_ms: int, retention_ms: int) -> CommitOffset:
    return CommitOffset(
        topic=requested.topic,
        partition=requested.partition,
        offset=requested.offset,
        leader_epoch=requested.leader_epoch,
        metadata=requested.metadata or "",
        commit_timestamp_ms=now_ms,
        metadata_epoch=NO_METADATA_EPOCH if epoch is None else epoch,
        expire_timestamp_ms=_expires_ms(now_ms, retention_ms),
    )


def _expires_ms(now_ms: int, retention_ms: int) -> int:
    """Return when the offset expires. Kafka adds the two (OffsetMetadataManager), and a negative sum expires at once,
    too. Unlike in Kafka, whose sum overflows, an endless retention time keeps the offset."""
    if retention_ms == BROKERS_RETENTION:
        return NO_TIMESTAMP
    return min(max(now_ms + retention_ms, 0), MAX_TIMESTAMP_MS)


def _refusal(image: MetadataImage, config: BrokerConfig, requested: RequestedOffset) -> Error:
    if not exists(image, requested.topic, requested.partition):
        return ErrorCode.unknown_topic_or_partition
    if requested.metadata and _is_too_large(config, requested.metadata):
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def exists(image: MetadataImage, topic: str, partition: int) -> bool:
    """Return whether the topic has this partition."""
    topic_image = image.topics.get(topic)
    return topic_image is not None and 0 <= partition < len(topic_image.partitions)


def _is_too_large(config: BrokerConfig, metadata: str) -> bool:
    """Kafka counts characters. A record of version 3 cannot hold more than MAX_TEXT_BYTES."""
    return len(metadata) > config.offset_metadata_max_bytes or len(metadata.encode()) > MAX_TEXT_BYTES


def epoch_refusal(metadata_epoch: int, last: CommitOffset | None) -> Error:
    """Return INVALID_METADATA_EPOCH if the client knows older metadata than those under which the offset was committed
    (M-7)."""
    last_epoch = NO_METADATA_EPOCH if last is None else last.metadata_epoch
    # Decision offset-commit-epoch
    return DraftError.INVALID_METADATA_EPOCH if metadata_epoch < last_epoch else ErrorCode.none


_COUNTS_AS_HEARTBEAT = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)

RunWork: TypeAlias = Callable[[Callable[[], object]], bool]
"""Runs a part of a request's work. Returns False if it failed because of a bug."""


def _call(work: Callable[[], object]) -> bool:
    work()
    return True


@dataclass(slots=True)
class OffsetMetadataManager:
    """The requests of clients about the offsets of their groups. ``find`` is ``GroupCoordinator.find``."""

    _ports: Ports
    _config: BrokerConfig
    _find: Callable[[str], GroupCoordinatorShard | Error]
    _groups: GroupMetadataManager
    _image: Callable[[], MetadataImage]
    _metrics: GroupMetrics
    verifier: CommitVerifier | None = None
    """TxnOffsetCommit is not served without it."""
    _work: SliceQueue = field(init=False)

    def __post_init__(self) -> None:
        self._work = SliceQueue(self._ports)

    # --- OffsetCommit -------------------------------------------------------------------------------------------------

    def commit_offsets(self, request: CommitRequest, respond: Committed, run: RunWork = _call) -> None:
        """Respond once the accepted offsets are replicated. All of them are written in one event. The work of each
        event is done through ``run``, which returns False if it failed.

        Errors for all offsets are those of ``find`` and of the log, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
        ILLEGAL_GENERATION, FENCED_INSTANCE_ID and REBALANCE_IN_PROGRESS. Errors for one offset are
        UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE and INVALID_METADATA_EPOCH (M-7).

        With a transaction there are those of the ``CommitVerifier`` and INVALID_PRODUCER_EPOCH, too. None of these
        replaces UNKNOWN_TOPIC_OR_PARTITION. Offsets that are written become visible when the transaction is
        committed."""
        has_group = request.group_id or request.transaction is None
        shard = self._find(request.group_id) if has_group else ErrorCode.invalid_group_id
        if isinstance(shard, Error):
            respond([shard] * len(request.offsets))
            return
        work = self._commit(self._new_validation(shard, request), respond, run)
        if len(request.offsets) > COMMITTED_OFFSETS_PER_SLICE:
            self._work.add(slices_run_by(run, work))
        else:
            run_to_end(work)

    def _commit(self, validation: CommitValidation, respond: Committed, run: RunWork) -> Sliced[None]:
        request = validation.request
        for batch in in_batches(request.offsets, COMMITTED_OFFSETS_PER_SLICE):
            self._validate(validation, replace(request, offsets=tuple(batch)))
            yield
        if request.transaction is None:
            self._validate_again_and_write(validation, respond)
        else:
            self._verify(validation, request.transaction, respond, run)

    def _new_validation(self, shard: GroupCoordinatorShard, request: CommitRequest) -> CommitValidation:
        image = self._image()
        return CommitValidation(shard, request, image, sends_metadata_epoch(image))

    def _validate(self, validation: CommitValidation, batch: CommitRequest) -> None:
        """Add the errors of these offsets of the request, and the records of the accepted ones."""
        now_ms, with_epoch = self._ports.now().wall_ms, validation.with_epoch
        errors, accepted = validate_offsets(
            validation.shard, batch, self._image(), self._config, now_ms, with_epoch=with_epoch
        )
        validation.errors += errors
        version = EPOCH_VALUE if with_epoch else CLASSIC_VALUE
        for commit in accepted:
            key = OffsetKey(batch.group_id, commit.topic, commit.partition)
            validation.accepted[key] = commit, (offset_key(*key), offset_value(commit, version))

    def _verify(
        self, validation: CommitValidation, transaction: OffsetsTransaction, respond: Committed, run: RunWork
    ) -> None:
        """Verify that the transaction is open. Everything has been validated by then, so that the offsets are written
        in the event in which the transaction is known to be open. Otherwise a marker could come between (KIP-890)."""
        assert self.verifier is not None, "a transaction cannot be verified without a verifier"
        if all(error is ErrorCode.unknown_topic_or_partition for error in validation.errors):
            respond(validation.errors)
            return

        def verified(error: Error) -> None:
            if error:  # Decision offset-commit-verified
                respond(validation.refused(client_error(error)))
            else:
                self._validate_again_and_write(validation, respond)

        self.verifier.verify(validation.shard.led, transaction, lambda error: run(partial(verified, error)))

    def _validate_again_and_write(self, validation: CommitValidation, respond: Committed) -> None:
        """Validate again what was validated in earlier events, since other commits may have come between, and write."""
        image = self._image()
        if validation.with_epoch is not sends_metadata_epoch(image):  # Decision metadata-epoch-switched-in-commit
            validation = self._new_validation(validation.shard, validation.request)
            self._validate(validation, validation.request)  # The feature was switched on or off, which is rare.
        else:
            validation.validate_again(image)
        self._write(validation, respond)

    def _write(self, validation: CommitValidation, respond: Committed) -> None:
        """Write the accepted offsets, in one batch, if the member may commit at this moment."""
        shard, request = validation.shard, validation.request
        # Decision offset-commit-at-coordinator
        error = membership_error(shard, request) if shard.is_led else ErrorCode.not_coordinator
        if error:
            respond(validation.refused(error))
            return
        group = shard.groups.get(request.group_id)
        is_heartbeat = request.transaction is None
        # Decision offset-commit-as-heartbeat
        if is_heartbeat and group is not None and group.state in _COUNTS_AS_HEARTBEAT:
            self._groups.extend_session(shard, request.group_id, request.member_id)
        if not validation.accepted:
            respond(validation.errors)
            return

        self._metrics.commits.value += len(validation.accepted)
        write = shard.commit(validation.accepted, _producer_of(request.transaction))
        if group is None and shard.is_led and request.group_id in shard.groups:  # Decision offset-commit-creates-group
            self._groups.serve(shard, shard.groups[request.group_id])
        run_coroutine(_respond_when_written(validation, write, respond))

    # --- OffsetFetch --------------------------------------------------------------------------------------------------

    def fetch_offsets(
        self,
        group_id: str,
        requested: Sequence[tuple[str, Sequence[int]]] | None,
        respond: Fetched,
        *,
        requires_stable: bool = False,
    ) -> None:
        """Respond with the committed and replicated offsets: those of the ``requested`` topics and partitions, in their
        order, or all if it is None.

        A coordinator that has just loaded waits until all that it loaded is replicated. If the client
        ``requires_stable`` offsets, it waits for the unreplicated commits, too, and marks the offsets that an
        open transaction may change. The errors are those of ``find``, and COORDINATOR_NOT_AVAILABLE if that takes
        longer than ``offsets.commit.timeout.ms``."""
        shard = self._find(group_id)
        if isinstance(shard, Error):
            respond(shard, [])
            return
        run_coroutine(_fetch_settled(shard, group_id, requested, respond, requires_stable))

    # --- OffsetDelete -------------------------------------------------------------------------------------------------

    def delete_offsets(
        self, group_id: str, requested: Sequence[tuple[str, int]], respond: Deleted, run: RunWork = _call
    ) -> None:
        """Respond with an error for all (GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, those of ``find`` and of the log) and one
        for each partition (GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_OR_PARTITION). To remove a missing offset is no
        error. Many offsets take several events, as in ``commit_offsets``. An error for all may come when some of them
        are removed already. A retry is harmless."""
        shard = self._find(group_id) if group_id else ErrorCode.invalid_group_id
        if isinstance(shard, Error):
            respond(shard, [])
            return
        work = self._delete(shard, group_id, requested, respond)
        if len(requested) > DELETED_OFFSETS_PER_SLICE:
            self._work.add(slices_run_by(run, work))
        else:
            run_to_end(work)

    def _delete(
        self, shard: GroupCoordinatorShard, group_id: str, requested: Sequence[tuple[str, int]], respond: Deleted
    ) -> Sliced[None]:
        errors: list[Error] = []
        removals: list[Future[Error]] = []
        for batch in list(in_batches(requested, DELETED_OFFSETS_PER_SLICE)) or [[]]:
            removals.append(self._delete_batch(shard, group_id, batch, errors))
            yield
        run_coroutine(_respond_when_removed(removals, errors, respond))

    def _delete_batch(
        self,
        shard: GroupCoordinatorShard,
        group_id: str,
        requested: Sequence[tuple[str, int]],
        errors: list[Error],
    ) -> Future[Error]:
        """Add an error for each of these partitions, and remove the offsets of the others. The group may have changed
        since the last batch."""
        group = shard.groups.get(group_id)
        refused: Error = ErrorCode.group_id_not_found if group is None else group.check_offset_delete()
        if not shard.is_led:
            refused = ErrorCode.not_coordinator
        if group is None or refused:
            return completed(refused)
        image = self._image()
        doomed: dict[OffsetKey, None] = {}
        for topic, index in requested:
            key = OffsetKey(group_id, topic, index)
            if not exists(image, topic, index):
                errors.append(ErrorCode.unknown_topic_or_partition)
            elif group.is_subscribed_to(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
            else:
                errors.append(ErrorCode.none)
                if shard.offsets.has_commit(key):
                    doomed[key] = None
        self._metrics.deletions.value += len(doomed)
        shard.retention.schedule(group_id, self._ports.now().wall_ms)
        return shard.remove_offsets(list(doomed)).error


async def _respond_when_written(validation: CommitValidation, write: OffsetsWrite, respond: Committed) -> None:
    refused = await write.error
    respond([error or refused for error in validation.errors])


async def _respond_when_removed(removals: Sequence[Future[Error]], errors: list[Error], respond: Deleted) -> None:
    respond(await first_error(removals), errors)


def _producer_of(transaction: OffsetsTransaction | None) -> TransactionProducer:
    if transaction is None:
        return NO_PRODUCER
    return TransactionProducer(transaction.producer_id, transaction.producer_epoch)


async def _fetch_settled(
    shard: GroupCoordinatorShard,
    group_id: str,
    requested: Sequence[tuple[str, Sequence[int]]] | None,
    respond: Fetched,
    requires_stable: bool,
) -> None:
    error = await shard.settled(requires_stable)
    respond(error, [] if error else _fetched(shard, group_id, requested, requires_stable))


def _fetched(
    shard: GroupCoordinatorShard,
    group_id: str,
    requested: Sequence[tuple[str, Sequence[int]]] | None,
    requires_stable: bool,
) -> list[FetchedOffset]:
    """As in Kafka, all offsets of a group do not include those that are only pending."""
    offsets = shard.offsets
    pending = offsets.pending_of(group_id) if requires_stable else ()
    if requested is None:
        requested = [(topic, tuple(partitions)) for topic, partitions in offsets.of(group_id).items()]
    keys = (OffsetKey(group_id, topic, index) for topic, indexes in requested for index in indexes)
    return [
        # Decision fetched-offset-pending
        FetchedOffset(key.topic, key.partition, None if key in pending else offsets.find(key), key in pending)
        for key in keys
    ]
