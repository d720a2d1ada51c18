"""The node gets SIGTERM and shuts down cleanly. One bit of its records, or of the topic ID beside them, is turned over;
or one of each file that ``match`` names. The node is started again after ``restart_after_s``. Each hit of a run draws
other bits, and so does each seed."""

from pathlib import Path
from random import Random

from chaos.disk_damage import Flip, flips, is_aimed_at
from chaos.faults.timed import End, Ended, Place, node_of
from chaos.live.targets import Target
from chaos.seeds import random_for


def begin(place: Place, target: Target) -> End:
    node, fault = node_of(target), target.fault
    hits = sum(row.name == fault.name for row in place.rows)
    random = random_for(place.spec(node).seed, f"{fault.name}-{hits}")
    how = place.child(node).terminate()

    def end() -> Ended:
        folder = place.folder(node)
        found = damaged(folder, random, fault.match.path)
        place.damage.note(folder, [flip.path for flip in found])
        place.restart(node)
        return Ended(f"{how}; turned over {', '.join(map(str, found))}" if how and found else "")

    return end


def damaged(folder: Path, random: Random, matching: str | None = None) -> list[Flip]:
    """Turns over bits (``flips``), and returns which. There are none if the node holds no such records."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*"))
    found = flips([(path, (folder / path).read_bytes()) for path in paths if is_aimed_at(path)], random, matching)
    for flip in found:
        with (folder / flip.path).open("r+b") as file:
            file.seek(flip.bit // 8)
            byte = file.read(1)[0]
            file.seek(flip.bit // 8)
            file.write(bytes([byte ^ 1 << flip.bit % 8]))
    return found
