"""The same handlers on the real log: whole batches, mid-batch offsets, and a fetcher that loses nothing."""

import pytest

from reference_broker.apis.tests.fetch_world import FetchWorld, partitions_of, real_log, real_records
from reference_broker.records.batch import iterate
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition

A0 = ("a", 0)


@pytest.fixture
def world() -> FetchWorld:
    world = FetchWorld(log_of=real_log)
    world.create("a", 4)
    return world


def write(world: FetchWorld, index: int = 0, records: int = 1) -> None:
    partition = world.partition("a", index)
    partition.log.append(world.broker.now, real_records([1_000] * records), partition.leader_epoch)
    partition.log.advance_high_watermark(partition.log.log_end_offset)
    partition.changed()


def offsets(records: bytes | memoryview | None) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for _, header in iterate(records or b"")]


def test_fetch_from_mid_batch_offset_returns_whole_batches(world: FetchWorld) -> None:
    write(world, records=3)
    write(world, records=2)
    data = partitions_of(world.fetch(0, -1, {A0: 1}).response)[A0]
    assert offsets(data.records) == [(0, 2), (3, 4)]
    small = partitions_of(world.fetch(0, -1, {A0: FetchPartition(0, 4, 10)}).response)[A0]
    assert offsets(small.records) == [(3, 4)]


@pytest.mark.clause("F-15", "F-20")
def test_processed_offsets_are_contiguous_under_a_tiny_limit(world: FetchWorld) -> None:
    position = [0] * 4
    session_id = world.open_session({("a", index): 0 for index in range(4)})
    changed: dict[tuple[str, int], int] = {}
    for epoch in range(1, 60):
        if epoch <= 20:
            write(world, epoch % 3, records=1 + epoch % 2)
        response = world.fetch(session_id, epoch, changed, max_bytes=1).response
        changed = {}
        for (_, index), data in partitions_of(response).items():
            for first, last in offsets(data.records):
                assert first == position[index]
                position[index] = last + 1
                changed["a", index] = last + 1
    ends = [world.partition("a", index).log.log_end_offset for index in range(4)]
    assert position == ends


def test_min_bytes_on_real_log(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    write(world)
    size = len(partitions_of(world.fetch(0, -1, {A0: 0}).response)[A0].records or b"")
    call = world.fetch(session_id, 1, max_wait_ms=500, min_bytes=size + 1)
    assert call.waiting
    write(world)
    assert len(partitions_of(call.response)[A0].records or b"") == 2 * size


def test_truncation_and_deletion_return_out_of_range(world: FetchWorld) -> None:
    write(world, records=2)
    write(world)
    log = world.partition("a").log
    log.delete_records_before(2)
    assert partitions_of(world.fetch(0, -1, {A0: 1}).response)[A0].error_code == ErrorCode.offset_out_of_range
    log.truncate_to(2)
    assert partitions_of(world.fetch(0, -1, {A0: 3}).response)[A0].error_code == ErrorCode.offset_out_of_range
