"""Names of snapshot files, beside the metadata log: ``<offset, 20 digits>-<epoch, 10 digits>.checkpoint``."""

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
    """Where this node writes its own: never resumed, gone after a restart."""
    return _path(snapshot, _MADE + PART_SUFFIX)


def part_path(snapshot: OffsetAndEpoch) -> str:
    """Where a download stands that may be resumed."""
    return _path(snapshot, PART_SUFFIX)


def progress_path(snapshot: OffsetAndEpoch) -> str:
    """What is known of the bytes in ``part_path`` (``progress``)."""
    return _path(snapshot, PROGRESS_SUFFIX)


def read_name(name: str, suffix: str) -> OffsetAndEpoch | None:
    """None for anything that is not exactly such a name."""
    offset, dash, epoch = name.removesuffix(suffix).partition("-")
    digits = offset + epoch
    good = name.endswith(suffix) and bool(dash) and digits.isascii() and digits.isdigit()
    if not good or len(offset) != _OFFSET_DIGITS or len(epoch) != _EPOCH_DIGITS:
        return None
    return OffsetAndEpoch(int(offset), int(epoch))


def is_stray(name: str) -> bool:
    """Whether a file belongs to snapshots and is none: what was left behind by whoever was stopped."""
    return name.endswith((PART_SUFFIX, PROGRESS_SUFFIX, DELETED_SUFFIX))


def _path(snapshot: OffsetAndEpoch, suffix: str) -> str:
    return f"{METADATA_DIRECTORY}/{snapshot.offset:0{_OFFSET_DIGITS}d}-{snapshot.epoch:0{_EPOCH_DIGITS}d}{suffix}"
