"""The folders of ``runs/``, and which of them may be deleted.

Only folders named by the suite (``NAME-YYYYMMDD-HHMMSS``) are considered. One without a verdict is never deleted,
because its run may be in progress.
"""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from reports.manifest import MANIFEST_NAME

KEEP = 20
"""Number of the newest runs that are kept."""
STAMP = re.compile(r"-(\d{8}-\d{6})$")
VERDICT = Path("report", "verdict.json")


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A folder with one run, or with several that are compared."""

    path: Path
    stamp: str
    """Time at which it was made (YYYYMMDD-HHMMSS). Runs are ordered by it."""
    outcomes: tuple[str, ...]
    """Outcomes of its runs that have a verdict; empty while a run is in progress."""
    is_as_it_must: bool
    """Whether each run PASSED, or FAILED with a planted mutant, so that nobody needs to look at it."""

    @property
    def made(self) -> datetime:
        return datetime.strptime(self.stamp, "%Y%m%d-%H%M%S")

    @property
    def page(self) -> Path | None:
        """The page to open: that of a comparison, or of the run. None if there is none."""
        pages = (self.path / "comparison.html", self.path / "report" / "index.html")
        return next((page for page in pages if page.exists()), None)

    def size_bytes(self) -> int:
        return sum(each.stat().st_size for each in self.path.rglob("*") if each.is_file())

    def delete(self) -> None:
        shutil.rmtree(self.path)


def surplus(runs: Path, keep: int = KEEP, red: bool = False) -> list[KeptRun]:
    """Return the runs that may be deleted, oldest first: all but the newest ``keep``.

    Runs that did not end as expected are neither counted nor returned, unless ``red``.
    """
    found = [run for run in listed(runs) if run.outcomes and (red or run.is_as_it_must)]
    return found[: max(0, len(found) - keep)]


def listed(runs: Path) -> list[KeptRun]:
    """Return all runs, oldest first."""
    return sorted(_kept(runs), key=lambda run: (run.stamp, run.path.name))


def _kept(runs: Path) -> Iterator[KeptRun]:
    for path in runs.iterdir() if runs.is_dir() else ():
        stamp = STAMP.search(path.name)
        if stamp is None or path.is_symlink():
            continue
        verdicts = [run / VERDICT for run in (path, *sorted(path.iterdir())) if _is_run(run)]
        found = [_outcome(file) for file in verdicts]
        shown = [file.exists() or not _is_readable(file.parents[1] / MANIFEST_NAME) for file in verdicts]
        outcomes = tuple(outcome for (outcome, _), is_shown in zip(found, shown, strict=True) if is_shown)
        yield KeptRun(path, stamp[1], outcomes, all(is_as_it_must for _, is_as_it_must in found))


def _is_run(folder: Path) -> bool:
    """A comparison has several runs in its folder. A run that was killed may have nothing but its trace."""
    return any((folder / each).exists() for each in (VERDICT, MANIFEST_NAME, "trace"))


def _is_readable(manifest: Path) -> bool:
    """Return whether the manifest can be read. One that is not written yet does not count as damaged."""
    try:
        return not manifest.exists() or isinstance(json.loads(manifest.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def _outcome(verdict: Path) -> tuple[str, bool]:
    """Return the outcome, and whether it is as expected. A missing or unreadable verdict is not."""
    try:
        found = json.loads(verdict.read_text(encoding="utf-8"))
        outcome = str(found["outcome"])
        return outcome, outcome == ("FAILED" if found["mutant"] else "PASSED")
    except (OSError, ValueError, KeyError, TypeError):
        return "unreadable", False
