"""Leader epochs and their start offsets: noted, looked up, truncated at both ends, and read from the file."""

import pytest

from reference_broker.log.checkpoints import Checkpoint
from reference_broker.log.leader_epochs import FILE_NAME, LeaderEpochFileCache
from reference_broker.ports.disk import MemoryDisk
from reference_broker.wire.fetch import EpochEndOffset

UNKNOWN = (-1, -1)


def epochs_of(*entries: tuple[int, int], disk: MemoryDisk | None = None) -> LeaderEpochFileCache:
    """Return epoch and start offset of each entry, assigned one after the other."""
    epochs = LeaderEpochFileCache(Checkpoint(disk or MemoryDisk(), FILE_NAME))
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def entries(epochs: LeaderEpochFileCache) -> list[tuple[int, int]]:
    return list(zip(epochs.epochs, epochs.starts, strict=True))


@pytest.mark.clause(
    "LeaderEpochFileCacheTest.shouldAddEpochAndMessageOffsetToCache",
    "LeaderEpochFileCacheTest.shouldNotUpdateEpochAndStartOffsetIfItDidNotChange",
    "LeaderEpochFileCacheTest.shouldNotOverwriteOffsetForALeaderEpochOnceItHasBeenAssigned",
    "LeaderEpochFileCacheTest.shouldNotOverwriteLogEndOffsetForALeaderEpochOnceItHasBeenAssigned",
    "LeaderEpochFileCacheTest.shouldEnforceMonotonicallyIncreasingStartOffsets",
    "LeaderEpochFileCacheTest.shouldEnforceOffsetsIncreaseMonotonically",
    "LeaderEpochFileCacheTest.shouldIncreaseAndTrackEpochsAsLeadersChangeManyTimes",
    "LeaderEpochFileCacheTest.shouldSupportEpochsThatDoNotStartFromZero",
)
@pytest.mark.parametrize(
    ("noted", "known"),
    [
        ([(2, 10)], [(2, 10)]),
        ([(2, 6), (2, 10)], [(2, 6)]),
        ([(2, 9), (3, 9)], [(3, 9)]),
        ([(2, 6), (3, 5)], [(3, 5)]),
        ([(0, 0), (1, 0), (2, 5)], [(1, 0), (2, 5)]),
    ],
    ids=["first", "again", "same start", "earlier start", "without records"],
)
def test_epoch_is_assigned_once_and_replaces_empty_ones(
    noted: list[tuple[int, int]], known: list[tuple[int, int]]
) -> None:
    epochs = epochs_of(*noted)
    assert (entries(epochs), epochs.latest) == (known, known[-1][0])


@pytest.mark.clause(
    "LeaderEpochFileCacheTest.shouldAddEpochAndMessageOffsetToCache",
    "LeaderEpochFileCacheTest.shouldSupportEpochsThatDoNotStartFromZero",
    "LeaderEpochFileCacheTest.shouldIncreaseAndTrackEpochsAsLeadersChangeManyTimes",
    "LeaderEpochFileCacheTest.shouldIncreaseAndTrackEpochsAsFollowerReceivesManyMessages",
    "LeaderEpochFileCacheTest.shouldReturnLogEndOffsetIfLatestEpochRequested",
    "LeaderEpochFileCacheTest.shouldGetFirstOffsetOfSubsequentEpochWhenOffsetRequestedForPreviousEpoch",
    "LeaderEpochFileCacheTest.shouldReturnNextAvailableEpochIfThereIsNoExactEpochForTheOneRequested",
    "LeaderEpochFileCacheTest.shouldReturnFirstEpochIfRequestedEpochLessThanFirstEpoch",
    "LeaderEpochFileCacheTest.shouldReturnInvalidOffsetIfEpochIsRequestedWhichIsNotCurrentlyTracked",
    "LeaderEpochFileCacheTest.shouldReturnUndefinedOffsetIfUndefinedEpochRequested",
    "LeaderEpochFileCacheTest.shouldReturnUnsupportedIfNoEpochRecorded",
    "LeaderEpochFileCacheTest.shouldReturnUnsupportedIfNoEpochRecordedAndUndefinedEpochRequested",
    "LeaderEpochFileCacheTest.shouldFetchEndOffsetOfEmptyCache",
)
@pytest.mark.parametrize(
    ("noted", "requested", "log_end", "found"),
    [
        ([], 0, 0, UNKNOWN),
        ([], 7, 0, UNKNOWN),
        ([], -1, 73, UNKNOWN),
        ([(2, 11), (3, 12)], -1, 0, UNKNOWN),
        ([(2, 10)], 2, 11, (2, 11)),
        ([(2, 11), (2, 12)], 2, 14, (2, 14)),
        ([(2, 100)], 3, 100, UNKNOWN),
        ([(5, 11), (6, 12), (7, 13)], 4, 0, (4, 11)),
        ([(1, 11), (1, 12), (2, 13), (2, 14), (3, 15), (3, 16)], 2, 17, (2, 15)),
        ([(0, 10), (2, 13), (4, 17)], 1, 0, (0, 13)),
        ([(0, 10), (2, 13), (4, 17)], 2, 0, (2, 17)),
        ([(0, 10), (2, 13), (4, 17)], 3, 0, (2, 17)),
        ([(0, 0), (1, 0), (2, 5)], 0, 10, (0, 0)),
        ([(0, 0), (1, 0), (2, 5)], 1, 10, (1, 5)),
        ([(0, 0), (1, 0), (2, 5)], 2, 10, (2, 10)),
        ([(0, 0), (0, 1), (1, 3), (1, 5), (2, 6), (2, 8)], 0, 9, (0, 3)),
        ([(0, 0), (0, 1), (1, 3), (1, 5), (2, 6), (2, 8)], 1, 9, (1, 6)),
        ([(0, 0), (0, 1), (1, 3), (1, 5), (2, 6), (2, 8)], 2, 9, (2, 9)),
    ],
)
def test_epoch_ends_where_next_one_starts(
    noted: list[tuple[int, int]], requested: int, log_end: int, found: tuple[int, int]
) -> None:
    assert epochs_of(*noted).end_offset_for(requested, log_end) == EpochEndOffset(*found)


@pytest.mark.clause("LeaderEpochFileCacheTest.shouldFetchEpochForGivenOffset")
def test_epoch_for_offset() -> None:
    epochs = epochs_of((0, 10), (1, 20), (5, 30))
    assert [epochs.epoch_at(offset) for offset in (5, 10, 20, 25, 30, 50)] == [-1, 0, 1, 1, 5, 5]


THREE = [(2, 6), (3, 8), (4, 11)]


@pytest.mark.clause(
    "LeaderEpochFileCacheTest.shouldPreserveResetOffsetOnClearEarliestIfOneExists",
    "LeaderEpochFileCacheTest.shouldUpdateSavedOffsetWhenOffsetToClearToIsBetweenEpochs",
    "LeaderEpochFileCacheTest.shouldUpdateOffsetBetweenEpochBoundariesOnClearEarliest",
    "LeaderEpochFileCacheTest.shouldUpdateOffsetBetweenEpochBoundariesOnClearEarliest2",
    "LeaderEpochFileCacheTest.shouldNotClearAnythingIfOffsetToEarly",
    "LeaderEpochFileCacheTest.shouldNotClearAnythingIfOffsetToFirstOffset",
    "LeaderEpochFileCacheTest.shouldRetainLatestEpochOnClearAllEarliest",
    "LeaderEpochFileCacheTest.shouldRetainLatestEpochOnClearAllEarliestAndUpdateItsOffset",
    "LeaderEpochFileCacheTest.shouldWriteCheckpointOnTruncation",
)
@pytest.mark.parametrize(
    ("start", "left"),
    [
        (1, THREE),
        (6, THREE),
        (7, [(2, 7), (3, 8), (4, 11)]),
        (8, [(3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        (11, [(4, 11)]),
        (15, [(4, 15)]),
    ],
)
def test_epoch_at_log_start_starts_there(start: int, left: list[tuple[int, int]]) -> None:
    disk = MemoryDisk()
    epochs = epochs_of(*THREE, disk=disk)
    epochs.truncate_from_start(start)
    assert entries(epochs) == left
    assert rows(disk) == [f"{epoch} {begin}" for epoch, begin in left]


@pytest.mark.clause(
    "LeaderEpochFileCacheTest.shouldDropEntriesOnEpochBoundaryWhenRemovingLatestEntries",
    "LeaderEpochFileCacheTest.shouldDropEntriesBetweenEpochBoundaryWhenRemovingNewest",
    "LeaderEpochFileCacheTest.shouldWriteCheckpointOnTruncation",
)
@pytest.mark.parametrize(("end", "left"), [(12, THREE), (11, THREE[:2]), (9, THREE[:2]), (8, THREE[:1]), (0, [])])
def test_epochs_at_or_beyond_end_are_truncated(end: int, left: list[tuple[int, int]]) -> None:
    disk = MemoryDisk()
    epochs = epochs_of(*THREE, disk=disk)
    epochs.drop(end)
    epochs.save()
    assert entries(epochs) == left
    assert rows(disk) == [f"{epoch} {begin}" for epoch, begin in left]


def rows(disk: MemoryDisk) -> list[str] | None:
    return Checkpoint(disk, FILE_NAME).read([FILE_NAME])


@pytest.mark.clause(
    "LeaderEpochFileCacheTest.shouldFetchLatestEpochOfEmptyCache",
    "LeaderEpochFileCacheTest.shouldClearEarliestOnEmptyCache",
    "LeaderEpochFileCacheTest.shouldClearLatestOnEmptyCache",
)
def test_truncation_without_epochs() -> None:
    epochs = epochs_of()
    epochs.truncate_from_start(7)
    epochs.drop(7)
    epochs.clear()
    assert entries(epochs) == []
    assert epochs.latest == -1
    assert epochs.epoch_at(7) == -1


@pytest.mark.clause("LeaderEpochFileCacheTest.shouldClearAllEntries")
def test_all_epochs_can_be_removed() -> None:
    disk = MemoryDisk()
    epochs = epochs_of(*THREE, disk=disk)
    epochs.clear()
    assert (entries(epochs), rows(disk)) == ([], [])


@pytest.mark.clause(
    "LeaderEpochFileCacheTest.shouldPersistEpochsBetweenInstances",
    "LeaderEpochCheckpointFileWithFailureHandlerTest.shouldPersistAndOverwriteAndReloadFile",
    "LeaderEpochCheckpointFileWithFailureHandlerTest.shouldRetainValuesEvenIfCheckpointIsRecreated",
)
def test_file_has_latest_epochs() -> None:
    disk = MemoryDisk()
    epochs_of(*THREE, disk=disk)
    for _ in range(2):
        again = epochs_of(disk=disk)
        assert again.load(rows(disk))
        assert entries(again) == THREE
    again.clear()
    again.assign(7, 20)
    last = epochs_of(disk=disk)
    assert last.load(rows(disk))
    assert entries(last) == [(7, 20)]
