"""Finds the first commit since the last night at which a seed fails, by playing it with the code of older commits.

``git bisect`` chooses the commits, in a work tree of its own, which is removed. A seed gives the same run with the same
code only. The smallest scenario has explicit faults, so it mostly breaks what it broke, also with somewhat other code;
where it does not, nobody knows the commit.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from campaigns.nights import children
from campaigns.nights.replay import BAD, CANNOT_TELL, GOOD
from campaigns.nights.work import Work
from reports.night import FailureRow

REPLAY = Path(__file__).with_name("replay.py")
_FOUND = re.compile(r"^([0-9a-f]{40}) is the first bad commit", re.MULTILINE)


def commit_of(work: Work, failure: FailureRow, until: float) -> tuple[str, str]:
    """Returns the commit, or nothing and why it is not known."""
    last = next((each.night.commit for each in reversed(work.earlier) if each.night.finished), "")
    now = work.night.commit
    if not last or not now:
        return "", "no finished night before this one names a commit"
    if last == now:
        return "", "the last night played the same commit"
    try:
        with _work_tree(work, now) as tree:
            return _bisected(work, failure, tree, last, until)
    except subprocess.CalledProcessError as wrong:
        return "", f"git could not look at older commits: {wrong.stderr.strip() or wrong}"


def _bisected(work: Work, failure: FailureRow, tree: Path, last: str, until: float) -> tuple[str, str]:
    replay = [sys.executable, "-P", str(REPLAY), str((work.folder / failure.regression).resolve())]
    replay += [str(failure.seed), failure.guarantee]
    environment = {**work.environment, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}

    def ran(*command: str) -> children.Done:
        log = work.folder / "logs" / f"bisect-{Path(failure.regression).stem}.log"
        return children.run(command, until, log, work.beat, environment, tree)

    for commit, wanted, otherwise in (
        (work.night.commit, BAD, "the commit as it stands does not fail, without what was changed since"),
        (last, GOOD, "the last night's commit fails, too"),
    ):
        _git(tree, "checkout", "--quiet", "--detach", commit)
        code = ran(*replay).code
        if code != wanted:
            told = {CANNOT_TELL: "older code cannot play it", children.OVER: "there was no time to look at commits"}
            return "", told.get(code, otherwise)
    _git(tree, "bisect", "start", work.night.commit, last)
    found = _FOUND.findall(ran("git", "bisect", "run", *replay).said)
    if found:
        return found[-1], ""
    return "", "there was no time to look at all commits" if time.monotonic() >= until else "no commit can be told"


@contextmanager
def _work_tree(work: Work, commit: str) -> Iterator[Path]:
    tree = work.scratch / "commits"
    _git(children.ROOT, "worktree", "prune")  # A night that was killed has left its own.
    _git(children.ROOT, "worktree", "add", "--quiet", "--force", "--detach", str(tree), commit)
    try:
        yield tree
    finally:
        _git(children.ROOT, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment).stdout
