"""Import of an old directory: accepted parts, refusals in one sentence, and written files."""

from pathlib import Path

import pytest

from campaigns.upgrade import taking_over
from campaigns.upgrade.full_replay import replayed, stable_end
from campaigns.upgrade.journey import eligible_segments
from campaigns.upgrade.kafka_files import (
    EPOCH_AT,
    UpgradeError,
    batches,
    checkpoint,
    checkpoint_rows,
    file_name,
    offsets_of,
)
from campaigns.upgrade.old_directory import TOPIC, WantedLog, make
from reference_broker.log.checkpoints import read_partition_metadata
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.serve.disk import FileDisk

SMALL = WantedLog(size_bytes=400_000, segment_bytes=40_000, batch_bytes=2_000)
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


@pytest.fixture
def old(tmp_path: Path) -> Path:
    make(tmp_path / "old", SMALL, NOW_MS)
    return tmp_path / "old"


def test_directory_that_is_made_is_that_of_an_old_broker(old: Path) -> None:
    directory = taking_over.read(old, ())
    (partition,) = directory.partitions
    assert (directory.broker_id, directory.topics, partition.name) == (0, {TOPIC: 1}, f"{TOPIC}-0")
    assert not (partition.folder / "partition.metadata").exists()
    ends = [*partition.bases[1:], replayed(partition.folder)[-1].next_offset]
    assert len(ends) >= 10
    assert partition.snapshots == set(ends[-3:]), "the newest segments and the end have one"
    assert (partition.log_start, taking_over.newest_epoch(partition)) == (0, 0)


def test_its_transactions_and_times_are_those_that_make_a_replay_hard(old: Path) -> None:
    replay = replayed(old / f"{TOPIC}-0")
    newest = [each.max_timestamp_ms for each in replay]
    assert newest == sorted(newest)
    assert newest[0] < NOW_MS - 3 * 86_400_000 < newest[-1] == NOW_MS
    assert any(each.open_from >= 0 for each in replay[:-2]), "one transaction reaches into a later segment"
    assert stable_end(replay) < replay[-1].next_offset, "one is not ended"
    assert eligible_segments(replay)[-1].next_offset <= stable_end(replay)


def test_files_are_copied_as_they_are(old: Path, tmp_path: Path) -> None:
    (partition,) = taking_over.read(old, ()).partitions
    assert taking_over.put(partition, tmp_path / "new") is False
    names = {path.name for path in partition.folder.iterdir()}
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    for name in names:
        assert (tmp_path / "new" / name).read_bytes() == (partition.folder / name).read_bytes()


def test_later_leader_epochs_become_those_of_a_new_topic(old: Path, tmp_path: Path) -> None:
    folder = old / f"{TOPIC}-0"
    last = folder / file_name(offsets_of(folder, ".log")[-1], ".log")
    data = bytearray(last.read_bytes())
    data[EPOCH_AT : EPOCH_AT + 4] = (7).to_bytes(4, "big")
    last.write_bytes(data)
    (partition,) = taking_over.read(old, ()).partitions
    assert taking_over.put(partition, tmp_path / "new") is True
    for base in partition.bases:
        name = file_name(base, ".log")
        before, after = list(batches(folder / name)), list(batches(tmp_path / "new" / name))
        assert {each.leader_epoch for each in after} == {0}
        assert after == [each._replace(leader_epoch=0) for each in before]
    assert checkpoint_rows(tmp_path / "new" / taking_over.EPOCHS) == [["0", "0"]]
    assert last.read_bytes() == data, "nothing of the old directory is changed"


def test_log_start_comes_from_the_checkpoint_or_the_first_segment(old: Path) -> None:
    (old / taking_over.LOG_START).write_text(checkpoint([f"{TOPIC} 0 17"]))
    assert taking_over.read(old, ()).partitions[0].log_start == 17
    folder = old / f"{TOPIC}-0"
    bases = offsets_of(folder, ".log")
    for base in bases[:2]:
        (folder / file_name(base, ".log")).unlink()
    assert taking_over.read(old, ()).partitions[0].log_start == bases[2]


@pytest.mark.parametrize(
    ("spoil", "topics", "words"),
    [
        (lambda old: (old / "meta.properties").unlink(), (), "version=0"),
        (lambda old: (old / "meta.properties").write_text("version=1\nnode.id=0\n"), (), "version=0"),
        (lambda old: (old / f"{TOPIC}-0").rename(old / f"{TOPIC}-2"), (), "lacks partition 0"),
        (lambda old: (old / f"{TOPIC}-0").rename(old / "__consumer_offsets-0"), (), "no partition with a segment"),
        (lambda _: None, ("others",), "no partition of topic others"),
        (lambda old: (old / taking_over.LOG_START).write_text("what"), (), "no checkpoint file"),
    ],
)
def test_unsupported_directory_is_rejected_in_one_sentence(old: Path, spoil, topics, words: str) -> None:  # type: ignore[no-untyped-def]
    spoil(old)
    with pytest.raises(UpgradeError, match=words):
        taking_over.read(old, topics)


@pytest.mark.parametrize("deleted", [0, 3])
def test_broker_opens_copied_directory(old: Path, tmp_path: Path, deleted: int) -> None:
    """``deleted`` of the oldest segments are gone, and the log start lies inside the first one that is left."""
    folder = old / f"{TOPIC}-0"
    bases = offsets_of(folder, ".log")
    for base in bases[:deleted]:
        for path in folder.glob(file_name(base, ".*")):
            path.unlink()
    start = bases[deleted] + (2 if deleted else 0)
    (old / taking_over.LOG_START).write_text(checkpoint([f"{TOPIC} 0 {start}"] if deleted else []))
    (folder / taking_over.EPOCHS).write_text(checkpoint([f"0 {start}"]))
    (partition,) = taking_over.read(old, ()).partitions
    taking_over.bind(partition, tmp_path / "new" / partition.name, bytes(range(16)))
    disk, config = FileDisk(tmp_path / "new", 64), LogConfig(retention_ms=-1)
    assert read_partition_metadata(disk, partition.name) == bytes(range(16))
    log = run_to_end(open_log(disk, partition.name, config, Now(0, NOW_MS), clean=True))
    replay = replayed(partition.folder)
    assert log.quarantine is None
    assert (log.log_start_offset, log.log_end_offset) == (start, replay[-1].next_offset)
    assert [segment.base_offset for segment in log.segments] == bases[deleted:]
    assert {who: each.last_sequence for who, each in log.producers.by_id.items() if each.batch_metadata} == {
        who: one.row.last_sequence
        for who, one in replay[-1].known.items()
        if one.row.last_sequence >= 0 and (one.row.timestamp_ms > NOW_MS - DAY_MS or one.row.open_from >= 0)
    }
