"""Events of remote segments round-trip through Kafka's bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.remote_log.metadata.events import (
    RemoteLogEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    decode,
    encode,
)

ids = st.binary(min_size=16, max_size=16)
int32s = st.integers(0, 2**31 - 1)
int64s = st.integers(0, 2**63 - 2)
places = {
    "topic_id": ids,
    "topic": st.text("abc._-", min_size=1, max_size=249),
    "partition": int32s,
    "broker_id": int32s,
    "event_timestamp_ms": int64s,
}


@st.composite
def segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start = draw(st.integers(0, 1000))
    epochs = sorted(draw(st.sets(int32s, min_size=1, max_size=5)))
    steps = draw(st.lists(st.integers(1, 50), min_size=len(epochs), max_size=len(epochs)))
    starts = [start + sum(steps[:count]) for count in range(len(epochs))]
    return draw(
        st.builds(
            RemoteLogSegmentMetadata,
            **places,
            segment_id=ids,
            start_offset=st.just(start),
            end_offset=st.just(start + sum(steps)),
            max_timestamp_ms=st.integers(-1, 2**62),
            size_bytes=int32s,
            leader_epochs=st.just(tuple(zip(epochs, starts, strict=True))),
            uploader_epoch=int32s,
            has_transaction_index=st.booleans(),
            state=st.sampled_from(RemoteLogSegmentState),
            attempt=int32s,
            metadata_offset=int64s,
        )
    )


updates = st.builds(
    RemoteLogSegmentMetadataUpdate,
    **places,
    segment_id=ids,
    uploader_epoch=int32s,
    state=st.sampled_from(RemoteLogSegmentState),
)
deletes = st.builds(RemotePartitionDeleteMetadata, **places, state=st.sampled_from(RemotePartitionDeleteState))
events = segments() | updates | deletes


@pytest.mark.clause(
    "RemoteLogMetadataSerdeTest.testRemoteLogSegmentMetadataSerde",
    "RemoteLogMetadataSerdeTest.testRemoteLogSegmentMetadataUpdateSerde",
    "RemoteLogMetadataSerdeTest.testRemotePartitionDeleteMetadataSerde",
)
@given(events)
def test_event_round_trip(event: RemoteLogEvent) -> None:
    assert decode(encode(event)) == event


@given(events, st.data())
def test_damaged_bytes_raise_damaged_record(event: RemoteLogEvent, data: st.DataObject) -> None:
    """The result is an event or DamagedRecord, but no other exception."""
    damaged = bytearray(encode(event))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except DamagedRecord:
        return


@given(events)
def test_extra_or_missing_bytes_are_rejected(event: RemoteLogEvent) -> None:
    value = encode(event)
    for wrong in (value[:-1], value + b"\0", b"", b"\0" + value, b"\x02" + value[1:]):
        with pytest.raises(DamagedRecord):
            decode(wrong)
