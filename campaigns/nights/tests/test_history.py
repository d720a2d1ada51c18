"""Nights on a branch of their own. Only git runs here, between two small clones."""

import subprocess
from pathlib import Path

import pytest

from campaigns.nights import history
from campaigns.nights.history import BRANCH, fetch, keep, kept_files
from reports.night import Night, night_folders, write_night


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """An empty clone whose remote ``origin`` is an empty repository beside it."""
    for each in ("remote", "clone"):
        (tmp_path / each).mkdir()
    git(tmp_path / "remote", "init", "--quiet", "--bare", ".")
    git(tmp_path / "clone", "init", "--quiet", ".")
    git(tmp_path / "clone", "remote", "add", "origin", str(tmp_path / "remote"))
    return tmp_path / "clone"


def a_night(nights: Path, day: int) -> Path:
    folder = nights / f"202601{day:02}-220000"
    write_night(folder, Night(night=folder.name, started_us=day, budget_s=1.0, seed=day))
    for name in ("plays.parquet", "regressions/x.toml", "live/01-x-1/report/index.html"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of {day}")
    return folder


def names(nights: Path) -> set[str]:
    return {str(each.relative_to(nights)) for each in nights.rglob("*") if each.is_file()}


def test_history_of_one_clone_is_fetched_by_another(clone: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for day in (1, 2):
        a_night(ours, day)
    (ours / "annotations.toml").write_text("")
    assert fetch(theirs, "origin", BRANCH, clone) == 0  # There is no such branch yet.
    assert keep(ours, "origin", BRANCH, clone) == 2
    changed = a_night(theirs, 2) / "plays.parquet"
    changed.write_text("of this clone")
    assert fetch(theirs, "origin", BRANCH, clone) == 1
    assert names(theirs) == names(ours)
    assert changed.read_text() == "of this clone"


def test_branch_never_grows_beyond_one_commit_and_nothing_else_changes(clone: Path, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        a_night(tmp_path / "nights", day)
        keep(tmp_path / "nights", "origin", BRANCH, clone)
    assert git(tmp_path / "remote", "rev-list", "--count", BRANCH) == "1"
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "branch", "--list") == ""


def test_older_nights_keep_their_tables_only_and_the_oldest_go(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_NIGHTS", 2)
    monkeypatch.setattr(history, "NIGHTS_WITH_PAGES", 1)
    nights = tmp_path / "nights"
    first, second, third = (a_night(nights, day) for day in (1, 2, 3))
    kept = set(kept_files(nights))
    assert not [file for file in kept if first in file.parents]
    assert {file.name for file in kept if second in file.parents} == {"night.json", "plays.parquet", "x.toml"}
    assert third / "live/01-x-1/report/index.html" in kept
    assert keep(nights, "origin", BRANCH, clone) == 2
    assert len(night_folders(nights)) == 3  # What lies here stays as it is.
