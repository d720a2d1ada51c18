"""Makes the node's partitions follow the metadata image: opens, reconfigures and deletes them.

A partition's directory is ``<topic>-<index>``. Deletion renames it to ``<topic>-<index>.<topic ID>-delete`` at once,
so that the name is free, and deletes the files later, one directory an event (some milliseconds on a busy disk). At
start all partitions are recovered in slices, and directories that no topic claims are deleted.
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from reference_broker.log.disk import Disk
from reference_broker.log.now import Now
from reference_broker.log.partition_log import PartitionLog, open_log, run_to_end
from reference_broker.model.config import BrokerConfig
from reference_broker.model.metadata_delta import MetadataDelta, TopicChange
from reference_broker.model.metadata_image import TOPIC_RESOURCE, MetadataImage, TopicImage
from reference_broker.model.partitions import Partition, Partitions

DELETED_SUFFIX = "-delete"
OPENINGS_PER_SLICE = 64
"""Partitions without files opened in one event at start; those with files yield while they are scanned."""

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
    _doomed: deque[str] = field(default_factory=deque)
    _deleting: bool = False

    def start(self, image: MetadataImage, clean: bool) -> Generator[None, None, None]:
        """Recovers every partition that this node leads, in slices. ``clean``: the last stop was a clean one."""
        yield from self._delete_strays(image)
        for topic in image.topics.values():
            log_config = self.config.log_config(image.topic_configs(topic.name))
            for index, partition in enumerate(topic.partitions):
                if partition.leader == self.node_id:
                    log = yield from open_log(
                        self.disk, directory_of(topic.name, index), log_config, self.now(), clean
                    )
                    self._lead(topic, index, log)
                if index % OPENINGS_PER_SLICE == OPENINGS_PER_SLICE - 1:
                    yield
            yield

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """A listener of the controller. Costs what changed: new partitions have no files yet, deletion is a rename."""
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
        log_config = self.config.log_config(image.topic_configs(topic.name))
        for index in change.partitions:
            state = topic.partitions[index]
            partition = self.partitions.by_id.get((topic.topic_id, index))
            if partition is not None:
                partition.leader_epoch = state.leader_epoch
                partition.changed()
            elif state.leader == self.node_id:
                opening = open_log(self.disk, directory_of(topic.name, index), log_config, self.now(), True)
                self._lead(topic, index, run_to_end(opening))

    def _lead(self, topic: TopicImage, index: int, log: PartitionLog) -> None:
        """With one replica all that is in the log is committed."""
        state = topic.partitions[index]
        log.assign_leader_epoch(state.leader_epoch)
        if len(state.replicas) == 1:
            log.advance_high_watermark(log.log_end_offset)
        self.partitions.add(Partition(topic.name, topic.topic_id, index, state.leader_epoch, log))

    def _reconfigure(self, topic: TopicImage, image: MetadataImage) -> None:
        log_config = self.config.log_config(image.topic_configs(topic.name))
        for index in range(len(topic.partitions)):
            partition = self.partitions.by_id.get((topic.topic_id, index))
            if partition is not None:
                partition.log.config = log_config

    def _close(self, topic: TopicImage) -> None:
        renamed = []
        for index in range(len(topic.partitions)):
            partition = self.partitions.by_id.get((topic.topic_id, index))
            if partition is not None:
                self.partitions.remove(partition)
            directory = directory_of(topic.name, index)
            if self.disk.exists(directory):
                target = deleted_directory_of(topic.name, index, topic.topic_id)
                self.disk.rename(directory, target)
                renamed.append(target)
        self._doom(renamed)

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
        """Somebody else's folder may have such a name, too: only one with segments is ours to delete."""
        return any(_SEGMENT.fullmatch(name) for name in self.disk.list(directory))

    def _doom(self, directories: Iterable[str]) -> None:
        self._doomed.extend(directories)
        if self._doomed and not self._deleting:
            self._deleting = True
            self.later(self._delete_slice)

    def _delete_slice(self) -> None:
        self.disk.delete(self._doomed.popleft())
        self._deleting = False
        self._doom(())
