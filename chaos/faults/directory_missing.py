"""The node gets SIGKILL, and comes back with an empty directory after ``restart_after_s``, as if its disk were not
mounted. When the fault ends, it gets SIGKILL again and comes back with its old directory."""

from pathlib import Path

from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target


def begin(place: Place, target: Target) -> End:
    node, fault, began_us = node_of(target), target.fault, place.now_us()
    folder = place.directory(node)
    if not folder.is_dir():
        return lambda: Ended("")  # A target may keep its data elsewhere, or in memory.
    how = place.child(node).kill()
    away = folder.with_name(f"{folder.name}-away")
    folder.rename(away)
    folder.mkdir()
    is_started = False

    def end() -> Ended | None:
        nonlocal is_started
        for_us = place.now_us() - began_us
        if for_us >= fault.duration_s * 1e6 or place.is_over:
            place.child(node).kill()
            _put_back(folder, away)
            place.restart(node)
            return Ended(f"{how}; came back without its directory" if "SIGKILL" in how and is_started else "")
        if not is_started and for_us >= fault.restart_after_s * 1e6:
            place.restart(node)
            is_started = True
        return None

    return end


def _put_back(folder: Path, away: Path) -> None:
    """What the node wrote meanwhile is kept beside it, for people."""
    folder.rename(folder.with_name(f"{folder.name}-empty"))
    away.rename(folder)
