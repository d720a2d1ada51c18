"""OffsetCommit, OffsetFetch and OffsetDelete, apart from any version of the messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.membership.membership import Membership
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.offsets.committed_offsets import OffsetKey
from reference_broker.groups.offsets.judging import exists, judged, membership_error
from reference_broker.groups.offsets.requests import CommitRequest, Committed, Deleted, Fetched, FetchedOffset
from reference_broker.groups.slices import SliceQueue
from reference_broker.groups.state.states import GroupState
from reference_broker.groups.storage.codec import CLASSIC_VALUE, EPOCH_VALUE
from reference_broker.groups.storage.partition import OffsetsPartition
from reference_broker.metadata.features import sends_metadata_epoch
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import Slices
from reference_broker.wire.errors import Error, ErrorCode

_COUNTS_AS_HEARTBEAT = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)

Contain: TypeAlias = Callable[[Callable[[], object]], bool]

OFFSETS_A_SLICE = 250
"""How many offsets of one commit are judged and written in one event. They cost some 3 ms."""


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
    _slices: SliceQueue = field(init=False)

    def __post_init__(self) -> None:
        self._slices = SliceQueue(self._ports)

    # --- OffsetCommit -----------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, answer: Committed, contain: Contain = _plainly) -> None:
        """Answers once the accepted offsets are replicated. More than OFFSETS_A_SLICE are written in several events.
        Each does its part through ``contain``, which returns False if that failed.

        Errors for all offsets are those of ``find`` and of the log, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
        ILLEGAL_GENERATION, FENCED_INSTANCE_ID and REBALANCE_IN_PROGRESS. Errors for one offset are
        UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE and INVALID_METADATA_EPOCH (M-7)."""
        target = self._find(request.group_id)
        if isinstance(target, Error):
            answer([target] * len(request.offsets))
        elif len(request.offsets) <= OFFSETS_A_SLICE:
            self._commit(target, request, answer)
        else:
            self._slices.add(self._commit_slices(target, request, answer, contain))

    def _commit_slices(
        self, target: OffsetsPartition, request: CommitRequest, answer: Committed, contain: Contain
    ) -> Slices:
        """Each slice is judged and written by itself, since the group may be another one by then."""
        offsets = request.offsets
        slices = [offsets[at : at + OFFSETS_A_SLICE] for at in range(0, len(offsets), OFFSETS_A_SLICE)]
        answers: dict[int, list[Error]] = {}

        def told(at: int, errors: list[Error]) -> None:
            answers[at] = errors
            if len(answers) == len(slices):
                answer([error for each in range(len(slices)) for error in answers[each]])

        for at, some in enumerate(slices):
            if not contain(partial(self._commit, target, replace(request, offsets=some), partial(told, at))):
                return
            yield

    def _commit(self, target: OffsetsPartition, request: CommitRequest, answer: Committed) -> None:
        error = membership_error(target, request) if target.is_led else ErrorCode.not_coordinator
        if error:
            answer([error] * len(request.offsets))
            return
        group = target.groups.get(request.group_id)
        if group is not None and group.state in _COUNTS_AS_HEARTBEAT:
            self._membership.heard(target, request.group_id, request.member_id)
        image = self._image()
        with_epoch = sends_metadata_epoch(image)
        now_ms = self._ports.now().wall_ms
        errors, accepted = judged(target, request, image, self._config, now_ms, with_epoch=with_epoch)
        if not accepted:
            answer(errors)
            return

        def written(refused: Error) -> None:
            answer([error or refused for error in errors])

        self._metrics.commits.value += len(accepted)
        target.commit(request.group_id, accepted, EPOCH_VALUE if with_epoch else CLASSIC_VALUE, written)
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
        ``requires_stable`` offsets, it waits for the commits that are on their way, too. The errors are those of
        ``find``, and COORDINATOR_NOT_AVAILABLE if that takes longer than ``offsets.commit.timeout.ms``."""
        target = self._find(group_id)
        if isinstance(target, Error):
            answer(target, [])
            return
        target.settled(
            requires_stable,
            lambda error: answer(error, [] if error else _fetched(target, group_id, wanted)),
        )

    # --- OffsetDelete -----------------------------------------------------------------------------------------------

    def delete(self, group_id: str, wanted: Sequence[tuple[str, int]], answer: Deleted) -> None:
        """Answers with an error for all (GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, those of ``find`` and of the log) and one
        for each partition (GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_OR_PARTITION). To remove what is not there is no
        error."""
        target = self._find(group_id) if group_id else ErrorCode.invalid_group_id
        if isinstance(target, Error):
            answer(target, [])
            return
        group = target.groups.get(group_id)
        error = ErrorCode.group_id_not_found if group is None else group.check_offset_delete()
        if group is None or error:
            answer(error, [])
            return
        image = self._image()
        errors: list[Error] = []
        doomed: dict[OffsetKey, None] = {}
        for topic, index in wanted:
            key = OffsetKey(group_id, topic, index)
            if not exists(image, topic, index):
                errors.append(ErrorCode.unknown_topic_or_partition)
            elif group.is_subscribed_to(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
            else:
                errors.append(ErrorCode.none)
                if target.offsets.latest(key) is not None:
                    doomed[key] = None
        self._metrics.deletions.value += len(doomed)
        target.retention.look_at(group_id, self._ports.now().wall_ms)
        target.remove_offsets(list(doomed), lambda refused: answer(refused, errors))


def _fetched(
    target: OffsetsPartition, group_id: str, wanted: Sequence[tuple[str, Sequence[int]]] | None
) -> list[FetchedOffset]:
    offsets = target.offsets
    if wanted is None:
        return [
            FetchedOffset(topic, index, stored.commit)
            for topic, partitions in offsets.of(group_id).items()
            for index, stored in partitions.items()
        ]
    return [
        FetchedOffset(topic, index, offsets.find(OffsetKey(group_id, topic, index)))
        for topic, indexes in wanted
        for index in indexes
    ]
