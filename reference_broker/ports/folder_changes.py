"""What a process knows of the names on its disk: which folders may have names that are not durable.

The real and the simulated disk both decide by it which folders a sync covers. A process that was killed may have left
changes that it did not sync. So a folder of which this process knows nothing counts as changed until its first sync.
"""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class KnownFolder:
    """``changes`` counts the changes of names, and the first ``durable`` of them are durable. The first change stands
    for all that earlier processes did."""

    changes: int = 1
    durable: int = 0
    is_syncing: bool = False
    failure: OSError | None = None


class FolderChanges:
    """Folders are named by their paths, of whatever kind the disk uses."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, KnownFolder] = {}

    def of(self, path: str) -> KnownFolder:
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = KnownFolder()
        return known

    def changed(self, path: str) -> None:
        """A name in the folder was created, renamed or deleted."""
        self.of(path).changes += 1

    def moved(self, source: str, target: str) -> None:
        """The folder has another path, and so have those in it."""
        for path in self._at_or_below(source):
            self._known[target + path[len(source) :]] = self._known.pop(path)

    def forget(self, path: str) -> None:
        """The folder is gone, with those in it."""
        for gone in self._at_or_below(path):
            del self._known[gone]

    def _at_or_below(self, path: str) -> list[str]:
        return [known for known in self._known if known == path or known.startswith(path + "/")]
