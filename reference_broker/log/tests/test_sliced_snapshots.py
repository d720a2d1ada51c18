"""Snapshots of very many producers: no append waits for a whole one, and each has the state at its roll."""

import pytest

from reference_broker.log import producer_state
from reference_broker.log.opening import open_log
from reference_broker.log.producer_state import ProducerStateEntry, decode_snapshot, encode_snapshot
from reference_broker.log.tests.log_world import DIRECTORY, NOW, opened, sent
from reference_broker.log.tests.recovery_world import stopped
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk

MANY = 23


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_PER_SLICE", 4)
    monkeypatch.setattr(producer_state, "PIECES_A_WRITE", 2)


def known_at(disk: MemoryDisk, offset: int) -> dict[int, ProducerStateEntry]:
    return dict(decode_snapshot(bytes(disk.files[f"{DIRECTORY}/{offset:020d}.snapshot"])))


def files(disk: MemoryDisk) -> list[str]:
    return [path.removeprefix(f"{DIRECTORY}/").lstrip("0") for path in sorted(disk.files) if ".snapshot" in path]


def crowded() -> tuple[MemoryDisk, UnifiedLog]:
    """Return a log that was rolled with MANY producers."""
    disk = MemoryDisk()
    log = opened(disk)
    for producer_id in range(MANY):
        sent(log, producer_id, 0)
    log.roll(NOW)
    return disk, log


def last_only(known: dict[int, ProducerStateEntry]) -> dict[int, ProducerStateEntry]:
    """Return the last batch of each producer, as in Kafka's file."""
    return {producer_id: each._replace(batch_metadata=each.batch_metadata[-1:]) for producer_id, each in known.items()}


@pytest.mark.clause("P-2")
def test_appends_after_roll_write_snapshot_of_roll() -> None:
    disk, log = crowded()
    at_roll = last_only(log.producers.by_id)
    assert files(disk) == []
    appends = 0
    while log.segments.snapshots.unfinished is not None:
        sent(log, appends % MANY, 1 + appends // MANY)
        appends += 1
    assert files(disk) == [f"{MANY}.snapshot"]
    assert known_at(disk, MANY) == at_roll
    assert appends == 9, "six slices to encode, and four to write, of which the first is done with the last of those"
    assert opened(disk, clean=False).producers.by_id == log.producers.by_id


@pytest.mark.clause("P-2")
def test_roll_encodes_nothing_and_each_append_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    row = producer_state._row

    def counted(producer_id: int, producer: ProducerStateEntry) -> bytes:
        rows.append(producer_id)
        return row(producer_id, producer)

    monkeypatch.setattr(producer_state, "_row", counted)
    _, log = crowded()
    assert rows == []
    sent(log, 0, 1)
    assert len(rows) == 4
    sent(log, 0, 2)
    assert len(rows) == 8


@pytest.mark.clause("P-3")
def test_clean_stop_completes_snapshot() -> None:
    disk, log = crowded()
    sent(log, 3, 1)
    stopped(log)
    assert files(disk) == [f"{MANY}.snapshot", f"{MANY + 1}.snapshot"]
    assert known_at(disk, MANY)[3].last_sequence == 0
    assert known_at(disk, MANY + 1)[3].last_sequence == 1


@pytest.mark.clause("P-2")
def test_next_roll_completes_unfinished_snapshot() -> None:
    disk, log = crowded()
    for sequence in range(1, 7):
        sent(log, 0, sequence)
    assert f"{MANY}.snapshot.new" in files(disk), "it is half written"
    log.roll(NOW)
    stopped(log)
    assert files(disk) == [f"{MANY}.snapshot", f"{MANY + 6}.snapshot"]


@pytest.mark.parametrize("which", [0, 1])
def test_truncation_below_snapshot_discards_it(which: int) -> None:
    disk, log = crowded()
    for sequence in range(1, 7):
        sent(log, 0, sequence)
    assert f"{MANY}.snapshot.new" in files(disk)
    if which:
        log.truncate_fully_and_start_at(3, NOW)
    else:
        log.truncate_to(MANY - 1)
    assert (log.segments.snapshots.unfinished, files(disk)) == (None, [])


def test_whole_snapshot_of_same_offset_replaces_unfinished_one() -> None:
    disk, log = crowded()
    whole = encode_snapshot(log.producers)
    for sequence in range(1, 7):
        sent(log, 0, sequence)
    log.segments.snapshots.put(MANY, whole)
    sent(log, 0, 7)
    assert (log.segments.snapshots.unfinished, files(disk)) == (None, [f"{MANY}.snapshot"])
    assert disk.files[f"{DIRECTORY}/{MANY:020d}.snapshot"] == whole


def test_truncation_above_snapshot_keeps_it() -> None:
    disk, log = crowded()
    for sequence in range(1, 4):
        sent(log, 0, sequence)
    log.truncate_to(MANY + 1)
    log.segments.snapshots.finish()
    assert {each.last_sequence for each in known_at(disk, MANY).values()} == {0}


@pytest.mark.clause("P-4")
@pytest.mark.parametrize("allowed", [1, 2])
def test_append_succeeds_if_slice_cannot_be_written(allowed: int) -> None:
    """One operation is the append itself."""
    disk, log = crowded()
    sequence = 0
    while log.segments.snapshots.unfinished is not None:
        sequence += 1
        disk.fail_after = allowed if sequence > 4 else None
        try:
            sent(log, 0, sequence)
        finally:
            disk.fail_after = None
    assert f"{MANY}.snapshot" not in files(disk), "the disk has refused it"
    assert log.log_end_offset == MANY + sequence
    assert opened(disk, clean=False).producers.by_id == log.producers.by_id


@pytest.mark.clause("P-4")
def test_start_decodes_snapshot_in_slices() -> None:
    disk, log = crowded()
    stopped(log)
    opening = open_log(disk, DIRECTORY, log.config, NOW, True)
    slices = sum(1 for _ in opening)
    assert slices >= MANY // 4
