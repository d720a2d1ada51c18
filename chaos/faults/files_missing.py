"""The node gets SIGTERM and shuts down cleanly. The files that ``match`` names are deleted. The node is started again
after ``restart_after_s``."""

from fnmatch import fnmatchcase
from pathlib import Path

from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target


def begin(place: Place, target: Target) -> End:
    node, fault = node_of(target), target.fault
    how = place.child(node).terminate()

    def end() -> Ended:
        gone = deleted(place.folder(node), fault.match.path or "")
        place.restart(node)
        return Ended(f"{how}; deleted {len(gone)} files, the first {gone[0]}" if how and gone else "")

    return end


def deleted(folder: Path, matching: str) -> list[str]:
    """Deletes the files whose paths below ``folder`` are like the shell pattern, and returns those paths, sorted."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*"))
    gone = [path for path in paths if fnmatchcase(path, matching)]
    for path in gone:
        (folder / path).unlink()
    return gone
