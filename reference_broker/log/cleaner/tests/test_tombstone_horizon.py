"""The tombstone horizon marker: its updates by the cleaner, and the tombstones that it allows to remove (H-1, H-2)."""

import pytest

from reference_broker.log.cleaner.cleaning import Cleaning, Overtaken
from reference_broker.log.cleaner.tests.cleaner_world import (
    BUFFER_BYTES,
    COMPACTED,
    SyncingDisk,
    carry_out,
    cleaned,
    dirty,
    fresh,
    put,
    rolled,
    sync_all,
    texts,
)
from reference_broker.log.tests.log_world import DIRECTORY, at, opened
from reference_broker.log.unified_log import UnifiedLog

OLD = at(2000)
"""Later than ``delete.retention.ms`` after the first pass."""
FILE = f"{DIRECTORY}/tombstone-horizon-checkpoint"


def with_a_tombstone() -> tuple[UnifiedLog, SyncingDisk]:
    """Offset 1 deletes the key of offset 0. A first pass has given the tombstone its deletion time."""
    log, disk = fresh()
    put(log, ("a", "1"))
    put(log, ("a", None))
    put(log, ("b", "1"))
    rolled(log)
    cleaned(log, disk)
    put(log, ("c", "1"))
    rolled(log)
    assert [offset for offset, _, _ in texts(log)] == [1, 2, 3]
    return log, disk


@pytest.mark.clause("H-1")
def test_marker_is_after_last_expired_tombstone() -> None:
    log, disk = with_a_tombstone()
    assert log.horizon.offset == 0, "delete.retention.ms is not over"
    cleaned(log, disk, OLD)
    assert [offset for offset, _, _ in texts(log)] == [2, 3]
    assert log.horizon.offset == 2
    again = opened(disk, config=COMPACTED)
    assert again.horizon.offset == 2


@pytest.mark.clause("H-1")
def test_superseded_tombstone_moves_no_marker() -> None:
    log, disk = with_a_tombstone()
    put(log, ("a", "2"))
    rolled(log)
    cleaned(log, disk, OLD)
    assert [offset for offset, _, _ in texts(log)] == [2, 3, 4]
    assert log.horizon.offset == 0, "a reader comes to the newer record"


@pytest.mark.clause("H-1")
def test_marker_is_durable_before_tombstones_are_removed() -> None:
    log, disk = with_a_tombstone()
    sync_all(log, disk)
    for step in Cleaning(log, dirty(log, OLD), OLD, BUFFER_BYTES).run():
        lost = opened(disk.after_power_loss(), config=COMPACTED, clean=False)
        is_there = any(offset == 1 for offset, _, _ in texts(lost))
        assert is_there or lost.horizon.offset == 2
        carry_out(disk, step)
    assert opened(disk.after_power_loss(), config=COMPACTED, clean=False).horizon.offset == 2


@pytest.mark.clause("H-2")
@pytest.mark.parametrize(("limit", "left"), [(0, [1, 2, 3]), (1, [1, 2, 3]), (2, [2, 3])])
def test_follower_keeps_tombstones_at_or_beyond_leaders_marker(limit: int, left: list[int]) -> None:
    log, disk = with_a_tombstone()
    log.horizon.limit = limit
    cleaned(log, disk, OLD)
    assert [offset for offset, _, _ in texts(log)] == left
    assert log.horizon.offset <= limit
    log.horizon.lead()
    put(log, ("d", "1"))
    rolled(log)
    cleaned(log, disk, OLD)
    assert [offset for offset, _, _ in texts(log)] == [2, 3, 4], "a leader has no limit"


@pytest.mark.clause("H-2")
def test_pass_started_as_leader_keeps_tombstones_as_follower() -> None:
    """The first segments of the log have no tombstone and are merged. Then the node follows another leader."""
    log, disk = fresh()
    for number in range(6):
        put(log, (f"k{number}", "x" * 150))
    put(log, ("a", None))
    rolled(log)
    cleaned(log, disk)
    put(log, ("b", "1"))
    rolled(log)
    sync_all(log, disk)
    steps = Cleaning(log, dirty(log, OLD), OLD, BUFFER_BYTES).run()
    carry_out(disk, next(steps))
    log.horizon.follow()

    def go_on() -> None:
        for step in steps:
            carry_out(disk, step)

    with pytest.raises(Overtaken, match="more tombstones"):
        go_on()
    assert texts(log)[-2:] == [(6, "a", None), (7, "b", "1")]
    assert log.horizon.offset == 0


@pytest.mark.clause("H-2")
def test_leader_becoming_follower_during_marker_sync_keeps_tombstone() -> None:
    log, disk = with_a_tombstone()
    sync_all(log, disk)
    steps = Cleaning(log, dirty(log, OLD), OLD, BUFFER_BYTES).run()
    step = next(steps)
    assert any("tombstone-horizon" in path for path in step.sync)
    carry_out(disk, step)
    log.horizon.follow()
    with pytest.raises(Overtaken, match="more tombstones"):
        next(steps)
    assert [offset for offset, _, _ in texts(log)] == [1, 2, 3]
    assert log.horizon.offset == 0


@pytest.mark.clause("H-2")
def test_follower_keeps_tombstones_until_leaders_marker_is_known() -> None:
    log, disk = with_a_tombstone()
    log.horizon.prepare(3)
    log.horizon.settle()
    log.horizon.follow()
    cleaned(log, disk, OLD)
    assert [offset for offset, _, _ in texts(log)] == [1, 2, 3]


@pytest.mark.clause("H-1")
@pytest.mark.parametrize("content", [None, b"0\n1\n5\n", b"0\n2\n5\n", b"0\n2\nx\n0\n", b""])
def test_unreadable_marker_file_counts_as_marker_at_clean_end(content: bytes | None) -> None:
    """The log was cleaned by software that kept no marker, or the file is damaged."""
    log, disk = with_a_tombstone()
    cleaned(log, disk, OLD)
    del disk.files[FILE]
    if content is not None:
        disk.files[FILE] = bytearray(content)
    again = opened(disk, config=COMPACTED)
    assert again.horizon.offset == again.cleaned_offset == 4


@pytest.mark.clause("H-1", "H-2")
def test_pass_without_removed_tombstones_is_recorded() -> None:
    _, disk = with_a_tombstone()
    again = opened(disk, config=COMPACTED)
    assert (again.horizon.offset, again.cleaned_offset) == (0, 3)


@pytest.mark.clause("H-1")
def test_power_loss_does_not_revert_marker() -> None:
    log, disk = with_a_tombstone()
    cleaned(log, disk, OLD)
    put(log, ("d", None))
    rolled(log)
    cleaned(log, disk, OLD)
    put(log, ("e", "1"))
    rolled(log)
    later = at(9000)
    for step in Cleaning(log, dirty(log, later), later, BUFFER_BYTES).run():
        assert opened(disk.after_power_loss(), config=COMPACTED, clean=False).horizon.offset >= 2
        carry_out(disk, step)
    assert log.horizon.offset == 5
    sync_all(log, disk)
    assert opened(disk.after_power_loss(), config=COMPACTED, clean=False).horizon.offset == 5
