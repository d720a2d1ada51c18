"""Which folders of ``runs/`` may be deleted, so that it does not grow for ever.

Only folders that got their name from us (``NAME-YYYYMMDD-HHMMSS``) are looked at. One without a verdict is left alone,
because it may still be in play.
"""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reports.manifest import MANIFEST_NAME

KEEP = 20
"""So many of the newest runs are kept."""
STAMP = re.compile(r"-(\d{8}-\d{6})$")
VERDICT = Path("report", "verdict.json")


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A folder with a verdict. ``stamp`` is when it was made, and orders runs.

    ``is_as_it_must`` says that the run PASSED, or that it FAILED with a planted mutant. Nobody needs to look at it.
    """

    path: Path
    stamp: str
    is_as_it_must: bool

    def size_bytes(self) -> int:
        return sum(each.stat().st_size for each in self.path.rglob("*") if each.is_file())

    def delete(self) -> None:
        shutil.rmtree(self.path)


def surplus(runs: Path, keep: int = KEEP, red: bool = False) -> list[KeptRun]:
    """Returns the runs that may be deleted, oldest first: all but the newest ``keep``.

    Runs that did not end as they must are neither counted nor returned, unless ``red``.
    """
    found = [each for each in _kept(runs) if red or each.is_as_it_must]
    found.sort(key=lambda each: (each.stamp, each.path.name))
    return found[: max(0, len(found) - keep)]


def _kept(runs: Path) -> Iterator[KeptRun]:
    for path in runs.iterdir() if runs.is_dir() else ():
        stamp = STAMP.search(path.name)
        if stamp is None or path.is_symlink():
            continue
        verdicts = [run / VERDICT for run in (path, *sorted(path.iterdir())) if _is_run(run)]
        if any(file.exists() for file in verdicts):
            yield KeptRun(path, stamp[1], all(_is_as_it_must(file) for file in verdicts))


def _is_run(folder: Path) -> bool:
    """A comparison has several runs in its folder. A run that was killed may have nothing but its trace."""
    return any((folder / each).exists() for each in (VERDICT, MANIFEST_NAME, "trace"))


def _is_as_it_must(verdict: Path) -> bool:
    """Returns false also for a verdict that is missing or cannot be read."""
    try:
        told = json.loads(verdict.read_text(encoding="utf-8"))
        return bool(told["outcome"] == ("FAILED" if told["mutant"] else "PASSED"))
    except (OSError, ValueError, KeyError, TypeError):
        return False
