"""Short functions that make events of remote segments for tests."""

from dataclasses import replace

from reference_broker.remote_log.metadata.events import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    update_of,
)

TOPIC_ID = bytes(range(16))
TOPIC = "tiered"
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def segment_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def copy_of(
    number: int,
    start_offset: int,
    end_offset: int,
    *epochs: tuple[int, int],
    by: int = 0,
    attempt: int = 0,
    partition: int = 0,
    topic_id: bytes = TOPIC_ID,
) -> RemoteLogSegmentMetadata:
    """Return the first event of copy ``number``, by the leader of epoch ``by``. ``attempt`` is the number if not
    given."""
    return RemoteLogSegmentMetadata(
        topic_id=topic_id,
        topic=TOPIC,
        partition=partition,
        segment_id=segment_id(number),
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp_ms=1_000,
        broker_id=1,
        event_timestamp_ms=2_000,
        size_bytes=100,
        leader_epochs=epochs or ((0, start_offset),),
        uploader_epoch=by,
        has_transaction_index=False,
        attempt=attempt or number,
    )


def step(
    segment: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState,
    by: int | None = None,
    expected_state: RemoteLogSegmentState | None = None,
) -> RemoteLogSegmentMetadataUpdate:
    """Return the next event of a segment, by the leader of epoch ``by``: the one that copied it, if not given."""
    update = update_of(segment, state, 1, segment.uploader_epoch if by is None else by, 3_000)
    return replace(update, expected_state=expected_state)


def deletion(
    state: RemotePartitionDeleteState, partition: int = 0, topic_id: bytes = TOPIC_ID
) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(
        topic_id=topic_id, topic=TOPIC, partition=partition, broker_id=1, event_timestamp_ms=4_000, state=state
    )
