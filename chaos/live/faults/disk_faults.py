"""Faults of a node's disk and of its files."""

from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Final

from chaos.faults.disk_damage import Flip, flips, is_aimed_at
from chaos.live.faults.fault_context import Begin, End, Ended, LiveFaultContext, node_of
from chaos.live.targets import FaultTarget
from chaos.seeds import random_for


def disk_slowed(context: LiveFaultContext, target: FaultTarget) -> End:
    """Every sync of the node's disk takes ``delay_ms`` longer, or with ``names_only`` every sync of a folder."""
    node = node_of(target)
    context.configure_disk_faults(node, {"slow_ms": target.fault.delay_ms.high, "names_only": target.fault.names_only})

    def end() -> Ended:
        evidence = context.disk_evidence(node, "disk_slowed")
        context.configure_disk_faults(node, {"slow_ms": 0})
        return Ended(evidence)

    return end


def disk_full(context: LiveFaultContext, target: FaultTarget) -> End:
    """Leave no space on the node's disk. A node that ends itself because of that is restarted when the fault is
    over."""
    node = node_of(target)
    child = context.child(node)
    child.expected_end = True
    context.configure_disk_faults(node, {"full": True})

    def end() -> Ended:
        evidence = context.disk_evidence(node, "disk_full")
        context.configure_disk_faults(node, {"full": False})
        child.expected_end = child.exit_status is not None
        if not child.expected_end:
            return Ended(evidence)
        context.restart(node)
        return Ended(f"{evidence}; {child.how_it_ended()}" if evidence else "")

    return end


def directory_missing(context: LiveFaultContext, target: FaultTarget) -> End:
    """The node gets SIGKILL, and comes back with an empty directory after ``restart_after_s``, as if its disk were not
    mounted. When the fault ends, it gets SIGKILL again and comes back with its old directory."""
    node, fault, began_us = node_of(target), target.fault, context.now_us()
    folder = context.data_folder(node)
    if not folder.is_dir():
        return lambda: Ended("")  # A target may keep its data elsewhere, or in memory.
    how = context.child(node).kill()
    away = folder.with_name(f"{folder.name}-away")
    folder.rename(away)
    folder.mkdir()
    is_started = False

    def end() -> Ended | None:
        nonlocal is_started
        for_us = context.now_us() - began_us
        if for_us >= fault.duration_s * 1e6 or context.is_over:
            context.child(node).kill()
            _put_back(folder, away)
            context.restart(node)
            return Ended(f"{how}; came back without its directory" if "SIGKILL" in how and is_started else "")
        if not is_started and for_us >= fault.restart_after_s * 1e6:
            context.restart(node)
            is_started = True
        return None

    return end


def _put_back(folder: Path, away: Path) -> None:
    """Put the file back. A file that the node wrote meanwhile is kept beside it, for inspection."""
    folder.rename(folder.with_name(f"{folder.name}-empty"))
    away.rename(folder)


def files_missing(context: LiveFaultContext, target: FaultTarget) -> End:
    """The node gets SIGTERM and shuts down cleanly. The files that ``match`` names are deleted. The node is started
    again after ``restart_after_s``."""
    node, fault = node_of(target), target.fault
    how = context.child(node).terminate()

    def end() -> Ended:
        gone = deleted(context.data_folder(node), fault.match.path or "")
        context.restart(node)
        return Ended(f"{how}; deleted {len(gone)} files, the first {gone[0]}" if how and gone else "")

    return end


def deleted(folder: Path, matching: str) -> list[str]:
    """Delete the files whose paths below ``folder`` are like the shell pattern, and return those paths, sorted."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*"))
    gone = [path for path in paths if fnmatchcase(path, matching)]
    for path in gone:
        (folder / path).unlink()
    return gone


def disk_bit_flipped(context: LiveFaultContext, target: FaultTarget) -> End:
    """The node gets SIGTERM and shuts down cleanly. One bit of its records, or of the topic ID beside them, is turned
    over; or one of each file that ``match`` names. The node is started again after ``restart_after_s``. Each
    firing in a run draws other bits, and so does each seed."""
    node, fault = node_of(target), target.fault
    fired = sum(row.name == fault.name for row in context.rows)
    random = random_for(context.spec(node).seed, f"{fault.name}-{fired}")
    how = context.child(node).terminate()

    def end() -> Ended:
        folder = context.data_folder(node)
        found = damaged(folder, random, fault.match.path)
        context.damage.note(folder, [flip.path for flip in found])
        context.restart(node)
        return Ended(f"{how}; turned over {', '.join(map(str, found))}" if how and found else "")

    return end


def damaged(folder: Path, random: Random, matching: str | None = None) -> list[Flip]:
    """Turn over bits (``flips``), and return which. There are none if the node holds no such records."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*"))
    found = flips([(path, (folder / path).read_bytes()) for path in paths if is_aimed_at(path)], random, matching)
    for flip in found:
        with (folder / flip.path).open("r+b") as file:
            file.seek(flip.bit // 8)
            byte = file.read(1)[0]
            file.seek(flip.bit // 8)
            file.write(bytes([byte ^ 1 << flip.bit % 8]))
    return found


BEGIN: Final[dict[str, Begin]] = {
    "disk_slowed": disk_slowed,
    "disk_full": disk_full,
    "directory_missing": directory_missing,
    "files_missing": files_missing,
    "disk_bit_flipped": disk_bit_flipped,
}
