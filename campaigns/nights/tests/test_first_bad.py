"""The first commit at which a seed fails, in a small repository whose code cannot play anything else."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from campaigns.nights import follow_up, processes
from campaigns.nights.night import Kept
from campaigns.nights.tests.small_nights import a_failure, work_of
from reports.night import Night

pytestmark = pytest.mark.live

PLAYER = """
class Verdict:
    class outcome:
        name = "FAILED"
    broken = {broken!r}

def {play}(scenario, seed):
    assert (scenario, seed) == ({file!r}, 7)
    return Verdict, None
"""
OLD, NEW = ("chaos/search/run_sim.py", "play"), ("chaos/sim/one_seed.py", "play_seed")
"""The module and function with which a commit plays a seed. The first two commits have it where it was earlier."""
LOADER = "def find(wanted):\n    return wanted\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    monkeypatch.setattr(processes, "ROOT", folder)
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "somebody")
        monkeypatch.setenv(f"{name}_EMAIL", "somebody@localhost")
    git(folder, "init", "--quiet", ".")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def committed(repository: Path, tmp_path: Path) -> Callable[[str], str]:
    """Commit code that breaks this guarantee (none, if it is empty; it cannot play at all with "new"). Return the
    commit."""
    file = str((tmp_path / "20260102-000000" / "regressions" / "x.toml").resolve())

    def commit(broken: str) -> str:
        number = len(list(repository.glob("*.txt")))
        (repository / f"{number}.txt").touch()
        (place, play), (gone, _) = (OLD, NEW) if number < 2 else (NEW, OLD)
        (repository / gone).unlink(missing_ok=True)
        code = "raise ImportError" if broken == "new" else PLAYER.format(file=file, broken=(broken,), play=play)
        for path, text in ((place, code), ("scenarios/loader.py", LOADER)):
            (repository / path).parent.mkdir(parents=True, exist_ok=True)
            (repository / path).write_text(text)
        git(repository, "add", "-A")
        git(repository, "commit", "--quiet", "-m", f"{number}")
        return git(repository, "rev-parse", "HEAD")

    return commit


def first_bad_of(tmp_path: Path, last: str, now: str, left_s: float = 60.0) -> tuple[str, str]:
    before = Night(night="20260101-000000", started_us=1, budget_s=1.0, seed=1, commit=last, finished=True)
    work = work_of(tmp_path / "20260102-000000", [Kept(before, [])], commit=now)
    work.journal.close(done=True)
    return follow_up.commit_of(work, a_failure(seed=7), time.monotonic() + left_s)


def test_first_bad_commit_is_found_between_the_last_night_and_this_one(
    committed: Callable[[str], str], repository: Path, tmp_path: Path
) -> None:
    commits = [committed(each) for each in ("", "other", "", "lost-write", "lost-write", "lost-write")]
    assert first_bad_of(tmp_path, commits[0], commits[-1]) == (commits[3], "")
    assert git(repository, "worktree", "list").count("\n") == 0  # Only the clone itself is left.
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (("lost-write", "lost-write"), "the last night's commit fails, too"),
        (("", ""), "the commit itself does not fail, without what was changed since"),
        (("new", "lost-write"), "older code cannot play it"),
        (("", "new", "lost-write"), "no commit can be named"),
    ],
)
def test_undecidable_search_is_reported(
    breaks: tuple[str, ...], why: str, committed: Callable[[str], str], tmp_path: Path
) -> None:
    commits = [committed(each) for each in breaks]
    assert first_bad_of(tmp_path, commits[0], commits[-1]) == ("", why)


def test_no_search_without_time_or_other_commit(committed: Callable[[str], str], tmp_path: Path) -> None:
    commits = [committed(each) for each in ("", "lost-write")]
    assert first_bad_of(tmp_path, commits[0], commits[1], 0.0) == ("", "there was no time to look at commits")
    assert first_bad_of(tmp_path, commits[1], commits[1]) == ("", "the last night played the same commit")
    assert first_bad_of(tmp_path, "1" * 40, commits[1])[1].startswith("git could not look at older commits: ")
