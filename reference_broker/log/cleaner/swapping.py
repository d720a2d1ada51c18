"""How a cleaned segment takes the place of those that it was made of, and what a start does with one that died on the
way. A crash at any operation leaves the old segments or the new one, never a part of both.

1. ``<base>.log.cleaned`` is written and synced. 2. Its name becomes ``<base>.log.swap``: from here on it counts.
3. The old segments' indexes go, and their files but the first. 4. The new file takes the first one's name.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from reference_broker.log.segment import NAME_DIGITS, Segment, headers, new_segment
from reference_broker.ports.disk import Disk
from reference_broker.records.batch import InvalidRecords

if TYPE_CHECKING:
    from reference_broker.log.partition_log import PartitionLog

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
LOG_SUFFIX = ".log"
_BATCHES_PER_SLICE = 2000


def cleaned_segment(directory: str, sources: Sequence[Segment]) -> Segment:
    """An empty one in memory, with the name that it has while it is written."""
    segment = new_segment(directory, sources[0].base_offset, sources[-1].created_ms)
    segment.path += CLEANED_SUFFIX
    return segment


def swap(log: "PartitionLog", sources: Sequence[Segment], cleaned: Segment) -> None:
    """The synced ``cleaned`` replaces ``sources``, which stand side by side in the log; its indexes have no files yet.
    After a DiskError only a restart can mend the log, so the node must end."""
    disk = log.disk
    path = sources[0].path
    disk.rename(cleaned.path, path + SWAP_SUFFIX)
    for source in reversed(sources[1:]):
        source.delete(disk)
    disk.delete(sources[0].offsets.path)
    disk.delete(sources[0].times.path)
    disk.rename(path + SWAP_SUFFIX, path)
    for source in sources:
        for gone in source.paths:
            log.durability.deleted(gone)
    cleaned.path = path
    at = log.segment_index_of(cleaned.base_offset)
    log.segments[at : at + len(sources)] = [cleaned]
    log.bases[at : at + len(sources)] = [cleaned.base_offset]


def needs_recovery(names: Sequence[str]) -> bool:
    return any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names)


def recover(disk: Disk, directory: str, names: Sequence[str]) -> Generator[None, None, list[str]]:
    """At a start, before segments are looked at: what was not finished goes, what counts already is carried through,
    in this order again. Returns the names that are there then."""
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            disk.delete(f"{directory}/{name}")
    for name in names:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            yield from _carry_through(disk, directory, int(name[:NAME_DIGITS]), names)
    return list(disk.list(directory))


def _carry_through(disk: Disk, directory: str, base: int, names: Sequence[str]) -> Generator[None, None, None]:
    first = new_segment(directory, base, 0)
    end = yield from _end_offset(disk, first.path + SWAP_SUFFIX, base)
    later = (int(name[:NAME_DIGITS]) for name in names if name.endswith(LOG_SUFFIX))
    for covered in sorted((other for other in later if base < other < end), reverse=True):
        new_segment(directory, covered, 0).delete(disk)
    disk.delete(first.offsets.path)
    disk.delete(first.times.path)
    disk.rename(first.path + SWAP_SUFFIX, first.path)


def _end_offset(disk: Disk, path: str, base: int) -> Generator[None, None, int]:
    """One past its last batch, which stood at the end of the last segment that it replaces. Damage on the disk is found
    when the segment is opened, and cut there."""
    end = base
    try:
        for number, (_, header) in enumerate(headers(disk, path, 0, disk.size(path)), 1):
            end = header.last_offset + 1
            if number % _BATCHES_PER_SLICE == 0:
                yield
    except InvalidRecords:
        return end
    return end
