"""What an OffsetCommit may store: whether the member may commit, and which of its offsets are accepted.

The rules are those of Kafka's OffsetMetadataManager for classic groups, and of the metadata epoch (M-7, M-11).
"""

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.record_fields import MOST_TEXT_BYTES
from reference_broker.groups.offsets.committed_offsets import NO_METADATA_EPOCH, NO_TIMESTAMP, CommitOffset, OffsetKey
from reference_broker.groups.offsets.requests import BROKERS_RETENTION, CommitRequest, WantedOffset
from reference_broker.groups.storage.partition import OffsetsPartition
from reference_broker.metadata.image import MetadataImage
from reference_broker.wire.errors import DraftError, Error, ErrorCode


def membership_error(target: OffsetsPartition, request: CommitRequest) -> Error:
    """Says whether the member may commit now."""
    group = target.groups.get(request.group_id)
    if group is None:
        if request.generation < 0:
            return ErrorCode.none
        return ErrorCode.group_id_not_found if request.knows_missing_groups else ErrorCode.illegal_generation
    return group.check_commit(request.member_id, request.group_instance_id, request.generation)


def judged(
    target: OffsetsPartition,
    request: CommitRequest,
    image: MetadataImage,
    config: BrokerConfig,
    now_ms: int,
    *,
    with_epoch: bool,
) -> tuple[list[Error], list[CommitOffset]]:
    """Returns an error for each offset, and the commits of those that are accepted. If a partition is named twice its
    last offset counts. ``with_epoch`` says whether metadata epochs are checked and kept."""
    errors: list[Error] = []
    accepted: dict[OffsetKey, CommitOffset] = {}
    for wanted in request.offsets:
        key = OffsetKey(request.group_id, wanted.topic, wanted.partition)
        epoch = wanted.metadata_epoch if with_epoch else None
        error = _refusal(image, config, wanted)
        if not error and epoch is not None:
            error = epoch_refusal(epoch, accepted.get(key) or target.offsets.latest(key))
        errors.append(error)
        if not error:
            accepted[key] = _commit(wanted, epoch, now_ms, request.retention_ms)
    return errors, list(accepted.values())


def _commit(wanted: WantedOffset, epoch: int | None, now_ms: int, retention_ms: int) -> CommitOffset:
    return CommitOffset(
        topic=wanted.topic,
        partition=wanted.partition,
        offset=wanted.offset,
        leader_epoch=wanted.leader_epoch,
        metadata=wanted.metadata or "",
        commit_timestamp_ms=now_ms,
        metadata_epoch=NO_METADATA_EPOCH if epoch is None else epoch,
        expire_timestamp_ms=_expires_ms(now_ms, retention_ms),
    )


def _expires_ms(now_ms: int, retention_ms: int) -> int:
    """Kafka adds the two (OffsetMetadataManager), and a negative sum is over at once, too."""
    if retention_ms == BROKERS_RETENTION:
        return NO_TIMESTAMP
    return max(now_ms + retention_ms, 0)


def _refusal(image: MetadataImage, config: BrokerConfig, wanted: WantedOffset) -> Error:
    if not exists(image, wanted.topic, wanted.partition):
        return ErrorCode.unknown_topic_or_partition
    if wanted.metadata and _is_too_large(config, wanted.metadata):
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def exists(image: MetadataImage, topic: str, partition: int) -> bool:
    """Says whether the topic has this partition."""
    known = image.topics.get(topic)
    return known is not None and 0 <= partition < len(known.partitions)


def _is_too_large(config: BrokerConfig, metadata: str) -> bool:
    """Kafka counts characters. A record of version 3 cannot hold more than MOST_TEXT_BYTES."""
    return len(metadata) > config.offset_metadata_max_bytes or len(metadata.encode()) > MOST_TEXT_BYTES


def epoch_refusal(metadata_epoch: int, last: CommitOffset | None) -> Error:
    """M-7: the client knows older metadata than those under which the offset was committed."""
    known = NO_METADATA_EPOCH if last is None else last.metadata_epoch
    return DraftError.INVALID_METADATA_EPOCH if metadata_epoch < known else ErrorCode.none
