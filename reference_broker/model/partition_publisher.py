"""Makes the node's partitions follow the metadata image: opens, leads, rests, reconfigures and deletes them.

A replica whose leader is not this node rests: its log is open and nobody may read or write it here.

A partition's directory is ``<topic>-<index>``. Deletion renames it to ``<topic>-<index>.<topic ID>-delete``, of a large
topic in slices but before its name is used again, and deletes the files later, one directory an event (some
milliseconds on a busy disk). At start all partitions are recovered in slices, and directories that no topic claims, by
name and ID, are deleted.
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from itertools import islice

from reference_broker.log.config import LogConfig
from reference_broker.log.disk import Disk
from reference_broker.log.now import Now
from reference_broker.log.partition_log import PartitionLog, open_log, run_to_end
from reference_broker.log.partition_metadata import FILE_NAME as PARTITION_METADATA_FILE
from reference_broker.log.partition_metadata import read_partition_metadata
from reference_broker.model.config import BrokerConfig
from reference_broker.model.metadata_delta import MetadataDelta, TopicChange
from reference_broker.model.metadata_image import TOPIC_RESOURCE, MetadataImage, TopicImage
from reference_broker.model.partitions import Partition, Partitions

DELETED_SUFFIX = "-delete"
OPENINGS_PER_SLICE = 64
"""Partitions without files opened in one event at start; those with files yield while they are scanned."""

RENAMES_PER_SLICE = 32
"""Of directories of deleted partitions in one event: some 2 ms."""

_MAX_NAME_BYTES = 255
_DELETED_DIRECTORY = re.compile(r".+-\d+\.[0-9a-f]{32}" + DELETED_SUFFIX)
_SEGMENT = re.compile(r"\d{20}\.log")
_PARTITION_DIRECTORY = re.compile(r"(.+)-(\d+)")
_INTERNAL_DIRECTORY = "__cluster_metadata-0"


def directory_of(topic: str, index: int) -> str:
    return f"{topic}-{index}"


def deleted_directory_of(topic: str, index: int, topic_id: bytes) -> str:
    """At most 255 bytes, as file systems ask; the topic's name is cut where needed."""
    ending = f"-{index}.{topic_id.hex()}{DELETED_SUFFIX}"
    return topic[: _MAX_NAME_BYTES - len(ending)] + ending


@dataclass(slots=True)
class PartitionPublisher:
    """``later(step)`` runs ``step`` in an event of its own, soon. ``now()``: the instant of the event being handled."""

    node_id: int
    config: BrokerConfig
    disk: Disk
    partitions: Partitions
    now: Callable[[], Now]
    later: Callable[[Callable[[], None]], None]
    _resting: dict[tuple[bytes, int], PartitionLog] = field(default_factory=dict)
    _missed: list[tuple[MetadataDelta, MetadataImage]] | None = None
    """Publications during the start, which follow after it."""
    _leaving: dict[str, str] = field(default_factory=dict)
    """Directories of deleted partitions, which may not exist, and the names that they get."""
    _doomed: deque[str] = field(default_factory=deque)
    _deleting: bool = False
    _topic_defaults: LogConfig = field(init=False)

    def __post_init__(self) -> None:
        self._topic_defaults = self.config.topic_defaults()

    def start(self, image: MetadataImage, clean: bool) -> Generator[None, None, None]:
        """Recovers every replica of this node, in slices. ``clean``: the last stop was a clean one."""
        self._missed = []
        yield from self._delete_strays(image)
        for topic in image.topics.values():
            log_config = self._log_config(topic, image)
            for index, partition in enumerate(topic.partitions):
                if self.node_id in partition.replicas:
                    directory = self._directory(topic, index)
                    log = yield from open_log(self.disk, directory, log_config, self.now(), clean)
                    self._settle(topic, index, log)
                if index % OPENINGS_PER_SLICE == OPENINGS_PER_SLICE - 1:
                    yield
            yield
        while self._missed:
            delta, later = self._missed.pop(0)
            self._follow(delta, later)
            yield
        self._missed = None

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """A listener of the loader. Costs what changed: new partitions have no files yet, deletion is a rename."""
        if self._missed is None:
            self._follow(delta, image)
        else:
            self._missed.append((delta, image))

    def resting_logs(self) -> Iterable[PartitionLog]:
        """Logs of replicas that this node holds and does not lead."""
        return self._resting.values()

    def _follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for change in delta.topics:
            if change.after is None:
                assert change.before is not None, "a topic change has a topic before it or after it"
                self._close(change.before)
            else:
                self._update(change, change.after, image)
        for kind, name in delta.configs:
            if kind == TOPIC_RESOURCE and name in image.topics:
                self._reconfigure(image.topics[name], image)

    def _update(self, change: TopicChange, topic: TopicImage, image: MetadataImage) -> None:
        log_config: LogConfig | None = None  # Only nodes that hold a replica need it.
        for index in change.partitions:
            state = topic.partitions[index]
            partition = self.partitions.by_id.get((topic.topic_id, index))
            if partition is None:
                if self.node_id in state.replicas:
                    log_config = log_config or self._log_config(topic, image)
                    self._settle(topic, index, self._log(topic, index, log_config))
            elif state.leader != self.node_id:
                self.partitions.remove(partition)
                self._resting[topic.topic_id, index] = partition.log
            elif partition.leader_epoch != state.leader_epoch:
                partition.leader_epoch = state.leader_epoch
                partition.log.assign_leader_epoch(state.leader_epoch)
                partition.changed()

    def _log(self, topic: TopicImage, index: int, log_config: LogConfig) -> PartitionLog:
        """Open already, or a new partition's, which has no files."""
        resting = self._resting.pop((topic.topic_id, index), None)
        if resting is not None:
            return resting
        return run_to_end(open_log(self.disk, self._directory(topic, index), log_config, self.now(), True))

    def _directory(self, topic: TopicImage, index: int) -> str:
        """Free of what an earlier topic of that name left, also one that went while this node was away."""
        directory = directory_of(topic.name, index)
        if directory in self._leaving:
            self._move(directory)
        elif read_partition_metadata(self.disk, directory) not in (None, topic.topic_id):
            self.disk.delete(directory)
        return directory

    def _log_config(self, topic: TopicImage, image: MetadataImage) -> LogConfig:
        configs = image.topic_configs(topic.name)
        return self.config.log_config(configs) if configs else self._topic_defaults

    def _settle(self, topic: TopicImage, index: int, log: PartitionLog) -> None:
        """Leads the partition or lets it rest. With one replica all that is in the log is committed."""
        state = topic.partitions[index]
        log.topic_id = topic.topic_id
        if state.leader != self.node_id:
            self._resting[topic.topic_id, index] = log
            return
        log.assign_leader_epoch(state.leader_epoch)
        if len(state.replicas) == 1:
            log.advance_high_watermark(log.log_end_offset)
        self.partitions.add(Partition(topic.name, topic.topic_id, index, state.leader_epoch, log))

    def _reconfigure(self, topic: TopicImage, image: MetadataImage) -> None:
        log_config = self._log_config(topic, image)
        for index in range(len(topic.partitions)):
            partition = self.partitions.by_id.get((topic.topic_id, index))
            log = partition.log if partition is not None else self._resting.get((topic.topic_id, index))
            if log is not None:
                log.config = log_config

    def _close(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            partition = self.partitions.by_id.get((topic.topic_id, index))
            if partition is not None:
                self.partitions.remove(partition)
            elif self._resting.pop((topic.topic_id, index), None) is None:
                continue
            target = deleted_directory_of(topic.name, index, topic.topic_id)
            self._leaving[directory_of(topic.name, index)] = target
        self._move_slice()
        self._doom(())

    def _move_slice(self) -> None:
        for directory in list(islice(self._leaving, RENAMES_PER_SLICE)):
            self._move(directory)

    def _move(self, directory: str) -> None:
        target = self._leaving.pop(directory)
        if self.disk.exists(directory):
            self.disk.rename(directory, target)
            self._doomed.append(target)

    def _delete_strays(self, image: MetadataImage) -> Generator[None, None, None]:
        """Directories that an earlier life left. Half-done deletions have names of their own and go later; partitions
        that no topic has go now, before a topic of their name can be made."""
        names = self.disk.list("")
        for name in self._strays(names, image):
            self.disk.delete(name)
            yield
        self._doom(name for name in names if _DELETED_DIRECTORY.fullmatch(name))

    def _strays(self, names: Iterable[str], image: MetadataImage) -> list[str]:
        strays = []
        for name in names:
            match = _PARTITION_DIRECTORY.fullmatch(name)
            if match is not None and name != _INTERNAL_DIRECTORY:
                topic = image.topics.get(match[1])
                if (topic is None or int(match[2]) >= len(topic.partitions)) and self._is_log(name):
                    strays.append(name)
        return strays

    def _is_log(self, directory: str) -> bool:
        """Somebody else's folder may have such a name, too: only one with a partition's files is ours to delete."""
        return any(
            _SEGMENT.fullmatch(name) or name == PARTITION_METADATA_FILE for name in self.disk.list(directory)
        )

    def _doom(self, directories: Iterable[str]) -> None:
        self._doomed.extend(directories)
        if (self._leaving or self._doomed) and not self._deleting:
            self._deleting = True
            self.later(self._delete_slice)

    def _delete_slice(self) -> None:
        if self._leaving:
            self._move_slice()
        elif self._doomed:  # A new topic may have taken the last name that was to be freed.
            self.disk.delete(self._doomed.popleft())
        self._deleting = False
        self._doom(())
