"""How a cleaned segment replaces the segments that it was made from, and how a start finishes a swap that a crash
interrupted. After a crash at any operation the log has either the old segments or the new one, never a part of both.

1. The cleaner writes and syncs ``<base>.log.cleaned``. A start deletes such a file.
2. The file is renamed to ``<base>.log.swap``. From here on the swap counts, and a start finishes it. The snapshots of
   producers below its end are gone by then, since they may have transactions open whose markers were removed.
3. The index files of the old segments are deleted, and their log files except the first.
4. The new file is renamed to the name of the first one.

The names are durable after step 2 and after step 3. Otherwise a power loss could keep deletions without the new file,
or the new file beside old segments that it holds already. The caller waits for these syncs.
"""

from collections.abc import Generator, Sequence

from reference_broker.log.producer_snapshots import offset_of
from reference_broker.log.segment import NAME_DIGITS, Segment, headers, new_segment
from reference_broker.ports.disk import Disk
from reference_broker.records.batch import InvalidRecords

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
LOG_SUFFIX = ".log"
_BATCHES_PER_SLICE = 2000


def cleaned_segment(directory: str, first: Segment) -> Segment:
    """Makes an empty segment in memory, with the name that its file has while it is written."""
    segment = new_segment(directory, first.base_offset, first.created_ms)
    segment.path += CLEANED_SUFFIX
    return segment


def swap_files(disk: Disk, sources: Sequence[Segment], cleaned: Segment) -> str:
    """Replaces the files of ``sources`` by the file of ``cleaned``. Returns the file's new path.

    After a DiskError only a restart can mend the log, so the node must end.
    """
    path = sources[0].path
    disk.rename(cleaned.path, path + SWAP_SUFFIX)
    disk.make_durable(path + SWAP_SUFFIX)
    for source in reversed(sources[1:]):
        source.delete(disk)
    sources[0].delete_indexes(disk)
    disk.make_durable(path + SWAP_SUFFIX)
    disk.rename(path + SWAP_SUFFIX, path)
    return path


def needs_recovery(names: Sequence[str]) -> bool:
    return any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names)


def recover(disk: Disk, directory: str, names: Sequence[str]) -> Generator[None, None, list[str]]:
    """Deletes files that were not finished, and finishes swaps that count already. A start runs it before it reads any
    segment. Returns the names of the files in the folder afterwards."""
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            disk.delete(f"{directory}/{name}")
    for name in names:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            yield from _carry_through(disk, directory, int(name[:NAME_DIGITS]), names)
    return list(disk.list(directory))


def _carry_through(disk: Disk, directory: str, base: int, names: Sequence[str]) -> Generator[None, None, None]:
    first = new_segment(directory, base, 0)
    disk.make_durable(first.path + SWAP_SUFFIX)
    end = yield from _end_offset(disk, first.path + SWAP_SUFFIX, base)
    later = (int(name[:NAME_DIGITS]) for name in names if name.endswith(LOG_SUFFIX))
    for covered in sorted((other for other in later if base < other < end), reverse=True):
        new_segment(directory, covered, 0).delete(disk)
    for name in names:
        snapshot = offset_of(name)
        if snapshot is not None and snapshot < end:
            disk.delete(f"{directory}/{name}")
    first.delete_indexes(disk)
    disk.make_durable(first.path + SWAP_SUFFIX)
    disk.rename(first.path + SWAP_SUFFIX, first.path)


def _end_offset(disk: Disk, path: str, base: int) -> Generator[None, None, int]:
    """Returns one past the last offset of a swap file. The segments below it are those that the file replaces, because
    the cleaner keeps the last batch of a group of segments.

    Damage is not judged here. It is found, and cut off, when the segment is opened.
    """
    end = base
    try:
        for number, (_, header) in enumerate(headers(disk, path, 0, disk.size(path)), 1):
            end = header.last_offset + 1
            if number % _BATCHES_PER_SLICE == 0:
                yield
    except InvalidRecords:
        return end
    return end
