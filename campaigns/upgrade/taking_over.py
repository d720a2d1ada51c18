"""Imports a log directory of a broker before 2.8: reads it, and copies its partitions to a new folder.

Nothing of the old directory is changed. A directory is imported in these steps:

1. ``meta.properties`` must have version 0. The new broker gets its ``broker.id`` and ``cluster.id``, and writes its own
   file (version 1, with a directory ID) into its empty folder.
2. The old topics have no IDs, so the new broker creates them. All partitions of a topic must be in the directory.
   Internal topics and settings (in ZooKeeper) are not copied; retention is unlimited until it is set.
3. The broker stops cleanly. The files of each partition are copied beside a ``partition.metadata`` with the new ID, and
   the log start offset is written to a checkpoint of the partition.
4. A new topic begins with leader epoch 0, and leader epochs never decrease. If the old log has later ones, all of its
   batches and ``leader-epoch-checkpoint`` get epoch 0. The CRC of a batch does not cover its leader epoch.
5. The broker starts. It must find the same end of each log. Then ``remote.storage.enable`` is set.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from campaigns.upgrade.kafka_files import (
    EPOCH_AT,
    UnknownFormat,
    UpgradeError,
    batches,
    checkpoint,
    checkpoint_rows,
    file_name,
    offsets_of,
    properties,
    whole_snapshots,
)
from reference_broker.metadata.identifiers import uuid_text

COPIED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
EPOCHS = "leader-epoch-checkpoint"
LOG_START = "log-start-offset-checkpoint"
FIRST_EPOCH = 0
"""The leader epoch with which a new topic begins."""
_PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<index>\d+)")


@dataclass(frozen=True, slots=True)
class OldPartition:
    """One partition of the old directory."""

    topic: str
    index: int
    folder: Path
    bases: Sequence[int]
    """Base offsets of its segments."""
    snapshots: frozenset[int]
    """Offsets of its complete snapshots."""
    log_start: int
    """The first offset that clients may read."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"


@dataclass(frozen=True, slots=True)
class OldDirectory:
    """A log directory of an older Kafka."""

    path: Path
    broker_id: int
    cluster_id: str  # empty if it is not recorded
    partitions: Sequence[OldPartition]

    @property
    def topics(self) -> dict[str, int]:
        """Topics with their numbers of partitions."""
        found: dict[str, int] = {}
        for partition in self.partitions:
            found[partition.topic] = max(found.get(partition.topic, 0), partition.index + 1)
        return found


def read(path: Path, topics: Sequence[str]) -> OldDirectory:
    """Read what is there of these topics, or of all but internal ones. Raise UpgradeError."""
    about = properties(path / "meta.properties")
    version, broker_id = about.get("version", ""), about.get("broker.id", "")
    if version != "0" or not broker_id.isdecimal():
        raise UpgradeError(
            f"{path} is no log directory from before KRaft: its meta.properties must have version=0 and a broker.id."
        )
    try:
        starts = {(row[0], int(row[1])): int(row[2]) for row in checkpoint_rows(path / LOG_START)}
        found = [_partition(folder, starts) for folder in sorted(path.iterdir()) if folder.is_dir()]
    except (UnknownFormat, IndexError, ValueError, OSError) as wrong:
        raise UpgradeError(f"{path} cannot be read: {wrong}") from wrong
    chosen = [each for each in found if each is not None and _is_wanted(each.topic, topics)]
    for topic in topics:
        if all(each.topic != topic for each in chosen):
            raise UpgradeError(f"{path} has no partition of topic {topic}.")
    if not chosen:
        raise UpgradeError(f"{path} has no partition with a segment.")
    directory = OldDirectory(path, int(broker_id), about.get("cluster.id", ""), chosen)
    _check_whole(directory)
    return directory


def _is_wanted(topic: str, topics: Sequence[str]) -> bool:
    return topic in topics if topics else not topic.startswith("__")


def _check_whole(directory: OldDirectory) -> None:
    there = {(partition.topic, partition.index) for partition in directory.partitions}
    for topic, count in directory.topics.items():
        missing = [index for index in range(count) if (topic, index) not in there]
        if missing:
            raise UpgradeError(
                f"{directory.path} lacks partition {missing[0]} of {topic}: give a folder with all of its partitions, "
                "or name other topics with --topic."
            )


def _partition(folder: Path, starts: dict[tuple[str, int], int]) -> OldPartition | None:
    """None for a folder that is no partition, or has no records."""
    named = _PARTITION.fullmatch(folder.name)
    bases = offsets_of(folder, ".log")
    if named is None or not bases:
        return None
    topic, index = named["topic"], int(named["index"])
    return OldPartition(
        topic, index, folder, bases, whole_snapshots(folder), max(starts.get((topic, index), 0), bases[0])
    )


def newest_epoch(partition: OldPartition) -> int:
    """The leader epoch of the last batch, or that of the checkpoint if it is newer. Raise UnknownFormat."""
    rows = checkpoint_rows(partition.folder / EPOCHS)
    newest = max((int(epoch) for epoch, _ in rows), default=FIRST_EPOCH)
    last = partition.folder / file_name(partition.bases[-1], ".log")
    return max([newest, *(batch.leader_epoch for batch in batches(last))])


def put(partition: OldPartition, target: Path) -> bool:
    """Copy the partition's files to the folder ``target``. Return whether their leader epochs had to be changed.

    A new topic begins with leader epoch 0, and a log never goes back. So if the old log has later ones, all of its
    batches get that one; their CRC does not cover it. Raise UpgradeError.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        for suffix in COPIED:
            for path in sorted(partition.folder.glob(f"*{suffix}")):
                shutil.copyfile(path, target / path.name)
        changes = newest_epoch(partition) > FIRST_EPOCH
        if changes:
            for base in partition.bases:
                _set_epochs(target / file_name(base, ".log"))
        epochs = target / EPOCHS
        if changes or not (partition.folder / EPOCHS).exists():
            epochs.write_text(checkpoint([f"{FIRST_EPOCH} {partition.log_start}"]))
        else:
            shutil.copyfile(partition.folder / EPOCHS, epochs)
    except (OSError, UnknownFormat, ValueError) as wrong:
        raise UpgradeError(f"{partition.folder} cannot be copied to {target}: {wrong}") from wrong
    return changes


def bind(partition: OldPartition, target: Path, topic_id: bytes) -> bool:
    """The same for the reference broker: ``partition.metadata`` binds the records to the new topic, and a checkpoint
    beside them has the log start. Raise UpgradeError."""
    changes = put(partition, target)
    (target / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_text(topic_id)}")
    if partition.log_start > 0:
        (target / LOG_START).write_text(checkpoint([f"{partition.topic} {partition.index} {partition.log_start}"]))
    return changes


def _set_epochs(path: Path) -> None:
    places = [batch.position for batch in batches(path)]
    with path.open("r+b") as file:
        for position in places:
            file.seek(position + EPOCH_AT)
            file.write(FIRST_EPOCH.to_bytes(4, "big"))
