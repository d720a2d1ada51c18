"""The names of snapshot files: ``<offset, 20 digits>-<epoch, 10 digits>.checkpoint``, beside the metadata log."""

from reference_broker.quorum.node_files import METADATA_DIRECTORY
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
PROGRESS_SUFFIX = ".checkpoint.part.progress"
DELETED_SUFFIX = ".checkpoint.deleted"
_MADE = "-made"
_OFFSET_DIGITS, _EPOCH_DIGITS = 20, 10


def snapshot_path(snapshot: OffsetAndEpoch) -> str:
    return _path(snapshot, SUFFIX)


def made_path(snapshot: OffsetAndEpoch) -> str:
    """Where this node writes its own snapshot. The file is never resumed, and a restart deletes it."""
    return _path(snapshot, _MADE + PART_SUFFIX)


def part_path(snapshot: OffsetAndEpoch) -> str:
    """Where the bytes of a download are kept. It may be resumed."""
    return _path(snapshot, PART_SUFFIX)


def progress_path(snapshot: OffsetAndEpoch) -> str:
    """Where the lengths and checksums of the bytes in ``part_path`` are kept (see ``partial``)."""
    return _path(snapshot, PROGRESS_SUFFIX)


def read_name(name: str, suffix: str) -> OffsetAndEpoch | None:
    """Returns None for anything that is not exactly such a name."""
    offset, dash, epoch = name.removesuffix(suffix).partition("-")
    digits = offset + epoch
    good = name.endswith(suffix) and bool(dash) and digits.isascii() and digits.isdigit()
    if not good or len(offset) != _OFFSET_DIGITS or len(epoch) != _EPOCH_DIGITS:
        return None
    return OffsetAndEpoch(int(offset), int(epoch))


def is_stray(name: str) -> bool:
    """Whether the file is an unfinished or deleted snapshot that a stopped process left behind."""
    return name.endswith((PART_SUFFIX, PROGRESS_SUFFIX, DELETED_SUFFIX))


def _path(snapshot: OffsetAndEpoch, suffix: str) -> str:
    return f"{METADATA_DIRECTORY}/{snapshot.offset:0{_OFFSET_DIGITS}d}-{snapshot.epoch:0{_EPOCH_DIGITS}d}{suffix}"
