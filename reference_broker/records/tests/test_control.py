"""Control batches carry Kafka's keys and messages."""

import pytest
from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
from kio.serial import entity_reader

from reference_broker.records.batch import InvalidRecords, read_header, validate
from reference_broker.records.control import (
    ControlType,
    build_control,
    decode_snapshot_header,
    leader_change,
    read_control,
    read_marker,
    snapshot_footer,
    snapshot_header,
)
from reference_broker.records.record import Record, build, read_records
from reference_broker.records.tests.markers import build_marker


@pytest.mark.parametrize("commit", [True, False])
def test_markers(commit: bool) -> None:
    batch = build_marker(commit=commit, producer_id=7, producer_epoch=2, coordinator_epoch=9, timestamp_ms=5)
    ((_, header),) = validate(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, -1)
    assert read_marker(batch, header) == (ControlType.COMMIT if commit else ControlType.ABORT, 9)
    (record,) = read_records(batch)
    assert record.key == (b"\x00\x00\x00\x01" if commit else b"\x00\x00\x00\x00")
    assert record.value == b"\x00\x00\x00\x00\x00\x09"


def test_leader_change() -> None:
    batch = build_control([leader_change(1, [1, 2, 3], [1, 3], 77)], base_offset=4, leader_epoch=6)
    ((_, header),) = validate(batch)
    assert (header.base_offset, header.leader_epoch, header.is_control) == (4, 6, True)
    (record,) = read_records(batch)
    control = read_control(record)
    assert control.type == ControlType.LEADER_CHANGE
    message = entity_reader(LeaderChangeMessage)(control.value, 0)[0]
    assert message.leader_id == 1
    assert [voter.voter_id for voter in message.voters] == [1, 2, 3]
    assert [voter.voter_id for voter in message.granting_voters] == [1, 3]
    assert read_marker(batch, header) is None


def test_snapshot_delimiters() -> None:
    batch = build_control([snapshot_header(123, 5), snapshot_footer(5)])
    first, last = (read_control(record) for record in read_records(batch))
    assert first.type == ControlType.SNAPSHOT_HEADER
    assert decode_snapshot_header(first).last_contained_log_timestamp == 123
    assert last.type == ControlType.SNAPSHOT_FOOTER
    assert entity_reader(SnapshotFooterRecord)(last.value, 0)[0].version == 0


def test_unreadable_control_batch_is_no_marker() -> None:
    for record in (Record(key=b"\x00", value=b""), Record(value=b"x"), Record(key=b"\x00\x00\x00\x01", value=b"\x00")):
        batch = build([record], is_control=True, producer_id=1, producer_epoch=0)
        assert read_marker(batch, read_header(batch)) is None
    with pytest.raises(InvalidRecords):
        read_control(Record(value=b"x"))
