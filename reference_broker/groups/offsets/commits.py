"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete, apart from any version of the messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.log import NO_PRODUCER, Producer, Written, client_error
from reference_broker.coordination.scheduling import SliceQueue
from reference_broker.groups.membership.membership import Membership
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.offsets.judging import Judged, exists, judged, membership_error
from reference_broker.groups.offsets.requests import (
    CommitRequest,
    Committed,
    Deleted,
    Fetched,
    FetchedOffset,
    Transaction,
    Verifier,
)
from reference_broker.groups.offsets.values import OffsetKey
from reference_broker.groups.state.states import GroupState
from reference_broker.groups.storage.codec import CLASSIC_VALUE, EPOCH_VALUE, offset_key, offset_value
from reference_broker.groups.storage.partition import OffsetsPartition
from reference_broker.metadata.features import sends_metadata_epoch
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import Slices
from reference_broker.wire.errors import Error, ErrorCode

_COUNTS_AS_HEARTBEAT = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)

Contain: TypeAlias = Callable[[Callable[[], object]], bool]

OFFSETS_A_SLICE = 250
"""How many offsets of one commit are judged in one event. They cost some 3 ms. To write them costs a third of that."""
DELETED_A_SLICE = 500
"""How many offsets that a client names are removed in one event. They cost some 2 ms."""


def _plainly(work: Callable[[], object]) -> bool:
    work()
    return True


@dataclass(slots=True)
class Commits:
    """What clients ask of the offsets of their groups. ``find`` is ``GroupCoordinator.find``."""

    _ports: Ports
    _config: BrokerConfig
    _find: Callable[[str], OffsetsPartition | Error]
    _membership: Membership
    _image: Callable[[], MetadataImage]
    _metrics: GroupMetrics
    verifier: Verifier | None = None
    """TxnOffsetCommit is not served without it."""
    _slices: SliceQueue = field(init=False)

    def __post_init__(self) -> None:
        self._slices = SliceQueue(self._ports)

    # --- OffsetCommit -----------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, answer: Committed, contain: Contain = _plainly) -> None:
        """Answers once the accepted offsets are replicated. More than OFFSETS_A_SLICE are judged in several events, and
        all are written in one. Each event does its part through ``contain``, which returns False if that failed.

        Errors for all offsets are those of ``find`` and of the log, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
        ILLEGAL_GENERATION, FENCED_INSTANCE_ID and REBALANCE_IN_PROGRESS. Errors for one offset are
        UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE and INVALID_METADATA_EPOCH (M-7).

        With a transaction there are those of the ``Verifier`` and INVALID_PRODUCER_EPOCH, too. None of these replaces
        UNKNOWN_TOPIC_OR_PARTITION. Offsets that are written are seen when the transaction is committed."""
        has_group = request.group_id or request.transaction is None
        target = self._find(request.group_id) if has_group else ErrorCode.invalid_group_id
        if isinstance(target, Error):
            answer([target] * len(request.offsets))
            return
        found = self._nothing_judged(target, request)
        if len(request.offsets) > OFFSETS_A_SLICE:
            self._slices.add(self._judge_slices(found, answer, contain))
            return
        self._judge(found, request)
        if request.transaction is None:
            self._write(found, answer)
        else:
            self._verify(found, request.transaction, answer, contain)

    def _judge_slices(self, found: Judged, answer: Committed, contain: Contain) -> Slices:
        request = found.request
        for at in range(0, len(request.offsets), OFFSETS_A_SLICE):
            some = replace(request, offsets=request.offsets[at : at + OFFSETS_A_SLICE])
            if not contain(partial(self._judge, found, some)):
                return
            yield
        if request.transaction is None:
            contain(partial(self._write_later, found, answer))
        else:
            contain(partial(self._verify, found, request.transaction, answer, contain))

    def _nothing_judged(self, target: OffsetsPartition, request: CommitRequest) -> Judged:
        image = self._image()
        return Judged(target, request, image, sends_metadata_epoch(image))

    def _judge(self, found: Judged, some: CommitRequest) -> None:
        """Adds the verdicts on these offsets of the request, and the records of the accepted ones."""
        now_ms, with_epoch = self._ports.now().wall_ms, found.with_epoch
        errors, accepted = judged(found.target, some, self._image(), self._config, now_ms, with_epoch=with_epoch)
        found.errors += errors
        version = EPOCH_VALUE if with_epoch else CLASSIC_VALUE
        for one in accepted:
            key = OffsetKey(some.group_id, one.topic, one.partition)
            found.accepted[key] = one, (offset_key(*key), offset_value(one, version))

    def _verify(self, found: Judged, transaction: Transaction, answer: Committed, contain: Contain) -> None:
        """Asks whether the transaction is open. All has been judged by then, so that the offsets are written in the
        event in which it is known to be open. Otherwise a marker could come between (KIP-890)."""
        assert self.verifier is not None, "nobody can say whether a transaction is open"
        if all(error is ErrorCode.unknown_topic_or_partition for error in found.errors):
            answer(found.errors)
            return

        def verified(error: Error) -> None:
            if error:
                answer(found.refused(client_error(error)))
            else:
                self._write_later(found, answer)

        self.verifier.verify(found.target.led, transaction, lambda error: contain(partial(verified, error)))

    def _write_later(self, found: Judged, answer: Committed) -> None:
        """What was judged some events ago is looked at again, since other commits may have come between."""
        image = self._image()
        if found.with_epoch is not sends_metadata_epoch(image):
            found = self._nothing_judged(found.target, found.request)
            self._judge(found, found.request)  # The feature was switched on or off, which is rare.
        else:
            found.look_again(image)
        self._write(found, answer)

    def _write(self, found: Judged, answer: Committed) -> None:
        """Writes what was accepted, in one batch, if the member may commit at this moment."""
        target, request = found.target, found.request
        error = membership_error(target, request) if target.is_led else ErrorCode.not_coordinator
        if error:
            answer(found.refused(error))
            return
        group = target.groups.get(request.group_id)
        is_heartbeat = request.transaction is None
        if is_heartbeat and group is not None and group.state in _COUNTS_AS_HEARTBEAT:
            self._membership.heard(target, request.group_id, request.member_id)
        if not found.accepted:
            answer(found.errors)
            return

        def written(refused: Error) -> None:
            answer([error or refused for error in found.errors])

        self._metrics.commits.value += len(found.accepted)
        target.commit(found.accepted, written, _producer_of(request.transaction))
        if group is None and target.is_led and request.group_id in target.groups:
            self._membership.serve(target, target.groups[request.group_id])

    # --- OffsetFetch ------------------------------------------------------------------------------------------------

    def fetch(
        self,
        group_id: str,
        wanted: Sequence[tuple[str, Sequence[int]]] | None,
        answer: Fetched,
        *,
        requires_stable: bool = False,
    ) -> None:
        """Answers with what is committed and replicated, for the ``wanted`` topics and partitions in their order, or
        for all if it is None.

        A coordinator that has just loaded waits until all that it loaded is replicated. If the client
        ``requires_stable`` offsets, it waits for the commits that are on their way, too, and is told which offsets an
        open transaction may change. The errors are those of
        ``find``, and COORDINATOR_NOT_AVAILABLE if that takes longer than ``offsets.commit.timeout.ms``."""
        target = self._find(group_id)
        if isinstance(target, Error):
            answer(target, [])
            return
        target.settled(
            requires_stable,
            lambda error: answer(error, [] if error else _fetched(target, group_id, wanted, requires_stable)),
        )

    # --- OffsetDelete -----------------------------------------------------------------------------------------------

    def delete(
        self, group_id: str, wanted: Sequence[tuple[str, int]], answer: Deleted, contain: Contain = _plainly
    ) -> None:
        """Answers with an error for all (GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, those of ``find`` and of the log) and one
        for each partition (GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_OR_PARTITION). To remove what is not there is no
        error.

        More than DELETED_A_SLICE go in several events, as in ``commit``. An error for all may come when some are
        removed already. Whoever asks again loses nothing by that."""
        target = self._find(group_id) if group_id else ErrorCode.invalid_group_id
        if isinstance(target, Error):
            answer(target, [])
            return
        errors: list[Error] = []
        refusals: list[Error] = []
        slices = [wanted[at : at + DELETED_A_SLICE] for at in range(0, len(wanted), DELETED_A_SLICE)] or [wanted]

        def removed(refused: Error) -> None:
            refusals.append(refused)
            if len(refusals) == len(slices):
                answer(next((each for each in refusals if each), ErrorCode.none), errors)

        def delete_slices() -> Slices:
            for some in slices:
                if not contain(partial(self._delete_some, target, group_id, some, errors, removed)):
                    return
                yield

        if len(slices) == 1:
            self._delete_some(target, group_id, wanted, errors, removed)
        else:
            self._slices.add(delete_slices())

    def _delete_some(
        self,
        target: OffsetsPartition,
        group_id: str,
        wanted: Sequence[tuple[str, int]],
        errors: list[Error],
        removed: Written,
    ) -> None:
        """Adds an error for each of these partitions, and removes the offsets of the others. The group may have become
        another one since the slice before."""
        group = target.groups.get(group_id)
        refused: Error = ErrorCode.group_id_not_found if group is None else group.check_offset_delete()
        if not target.is_led:
            refused = ErrorCode.not_coordinator
        if group is None or refused:
            removed(refused)
            return
        image = self._image()
        doomed: dict[OffsetKey, None] = {}
        for topic, index in wanted:
            key = OffsetKey(group_id, topic, index)
            if not exists(image, topic, index):
                errors.append(ErrorCode.unknown_topic_or_partition)
            elif group.is_subscribed_to(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
            else:
                errors.append(ErrorCode.none)
                if target.offsets.has_commit(key):
                    doomed[key] = None
        self._metrics.deletions.value += len(doomed)
        target.retention.schedule(group_id, self._ports.now().wall_ms)
        target.remove_offsets(list(doomed), removed)


def _producer_of(transaction: Transaction | None) -> Producer:
    if transaction is None:
        return NO_PRODUCER
    return Producer(transaction.producer_id, transaction.producer_epoch)


def _fetched(
    target: OffsetsPartition, group_id: str, wanted: Sequence[tuple[str, Sequence[int]]] | None, requires_stable: bool
) -> list[FetchedOffset]:
    """As in Kafka, all offsets of a group do not include those that are only pending."""
    offsets = target.offsets
    pending = offsets.pending_of(group_id) if requires_stable else ()
    if wanted is None:
        wanted = [(topic, tuple(partitions)) for topic, partitions in offsets.of(group_id).items()]
    keys = (OffsetKey(group_id, topic, index) for topic, indexes in wanted for index in indexes)
    return [
        FetchedOffset(key.topic, key.partition, None if key in pending else offsets.find(key), key in pending)
        for key in keys
    ]
