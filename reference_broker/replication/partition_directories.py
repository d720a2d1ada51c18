"""The directories of a node's partitions: their names, and the deletion of those that are no longer used.

A partition's directory is ``<topic>-<index>``. Deletion first renames it to ``<topic>-<index>.<topic ID>-delete``. A
large topic is renamed in slices, but always before its name is used again. The files are deleted when the new names are
durable, so that no power loss leaves half a partition under its old name. That takes one event for each directory (some
milliseconds on a busy disk).
"""

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from reference_broker.log.checkpoints import read_partition_metadata
from reference_broker.ports.disk import Disk
from reference_broker.ports.slicing import RENAMED_DIRECTORIES_PER_SLICE

DELETED_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_MAX_NAME_BYTES = 255
DELETED_DIRECTORY = re.compile(r".+-\d+\.[0-9a-f]{32}" + DELETED_SUFFIX)


def directory_of(topic: str, index: int) -> str:
    return f"{topic}-{index}"


def deleted_directory_of(topic: str, index: int, topic_id: bytes) -> str:
    return _capped(topic, f"-{index}.{topic_id.hex()}{DELETED_SUFFIX}")


def _capped(topic: str, ending: str) -> str:
    """The name has at most 255 bytes, the limit of file systems; the topic's name is cut if needed."""
    return topic[: _MAX_NAME_BYTES - len(ending)] + ending


def no_note(_: str, *fields: tuple[str, int | str]) -> None:
    """Nobody keeps notes."""


@dataclass(slots=True)
class PartitionDirectories:
    """``later``, ``sync`` and ``note`` are those of ``BrokerMetadataPublisher``."""

    _disk: Disk
    _later: Callable[[Callable[[], None]], object]
    _sync: Callable[[tuple[str, ...], Callable[[], None]], None]
    _note: Callable[..., None] = no_note
    deleted_topics: set[bytes] = field(default_factory=set)
    """The IDs of topics whose deletion was in the metadata before this node's partitions were opened."""
    _leaving: dict[str, str] = field(default_factory=dict)
    """Directories of deleted partitions, and the names that they will get. A directory may not exist."""
    _renamed: list[str] = field(default_factory=list)
    """Directories of deleted partitions whose new names are perhaps not durable."""
    _doomed: deque[str] = field(default_factory=deque)
    """Directories of deleted partitions whose files may go."""
    _deleting: bool = False

    def give_up(self, topic: str, index: int, topic_id: bytes) -> None:
        """The partition has no replica here any more. ``delete`` or ``rename_some`` must follow."""
        self._leaving[directory_of(topic, index)] = deleted_directory_of(topic, index, topic_id)

    def free(self, directory: str) -> bool:
        """Rename the directory now if it is to be deleted, since its name is used again. Return whether it was."""
        if directory not in self._leaving:
            return False
        self._rename(directory)
        return True

    def rename_some(self) -> None:
        """Rename as many directories as one event may, to the names that say that they are to be deleted."""
        for directory in list(islice(self._leaving, RENAMED_DIRECTORIES_PER_SLICE)):
            self._rename(directory)

    def _rename(self, directory: str) -> None:
        target = self._leaving.pop(directory)
        if self._disk.exists(directory):
            self._disk.rename(directory, target)
            self._renamed.append(target)

    def clear(self, directory: str, topic: str, index: int) -> None:
        """Delete the directory if the metadata has its topic's deletion, and otherwise rename it as a stray."""
        topic_id = read_partition_metadata(self._disk, directory) or b""
        if topic_id in self.deleted_topics:
            self._disk.delete(directory)
            return
        ending = f"-{index}.{topic_id.hex() or 'unknown'}"
        number, stray = 1, _capped(topic, f"{ending}{STRAY_SUFFIX}")
        while self._disk.exists(stray):
            number += 1
            stray = _capped(topic, f"{ending}.{number}{STRAY_SUFFIX}")
        self._disk.rename(directory, stray)
        self._note("stray_renamed", ("directory", directory), ("name", stray))

    def delete(self, directories: Iterable[str] = ()) -> None:
        """Delete the given directories and those that were given up, one in each event."""
        self._doomed.extend(directories)
        if (self._leaving or self._renamed or self._doomed) and not self._deleting:
            self._deleting = True
            self._later(self._delete_slice)

    def _delete_slice(self) -> None:
        """Rename some directories, or make the new names durable, or delete one directory."""
        if self._leaving:
            self.rename_some()
        elif self._renamed:
            durable, self._renamed = self._renamed, []
            self._sync((durable[0],), lambda: self._sliced(durable))
            return
        elif self._doomed:  # It may be empty: a new topic may have freed the last name itself.
            self._disk.delete(self._doomed.popleft())
        self._sliced(())

    def _sliced(self, durable: Iterable[str]) -> None:
        self._deleting = False
        self.delete(durable)
