"""Keeps nights on a branch of their own: ``python -m campaigns.nights.history fetch|keep``.

``fetch`` brings the branch's nights into the folder of nights; those that are there stay as they are. ``keep`` makes
the branch again from that folder, as one commit without parents, so that it does not grow for ever: the tables of the
newest nights, and the pages of their runs for fewer of them. Nobody's work tree or index changes.
"""

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from campaigns.nights.night import NIGHTS
from campaigns.nights.processes import ROOT
from reports.night import ANNOTATIONS_NAME, NIGHT_NAME, night_folders

BRANCH = "nights"
MAX_NIGHTS = 180
NIGHTS_WITH_PAGES = 14
TABLES = (NIGHT_NAME, "*.parquet", "regressions/*.toml")
"""Files that stay of a night whose runs' pages are gone."""
AUTHOR = {"NAME": "crucible nightly", "EMAIL": "nightly@localhost"}


def fetch(nights: Path, remote: str, branch: str, root: Path = ROOT) -> int:
    """Return how many nights it brought. There are none as long as there is no such branch."""
    if not _git(root, "ls-remote", "--heads", remote, branch).strip():
        return 0
    _git(root, "fetch", "--quiet", "--depth", "1", remote, branch)
    archive = _git_bytes(root, "archive", "--format=tar", "FETCH_HEAD")
    before = {folder.name for folder in night_folders(nights)}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for each in tar:
            content, parts = tar.extractfile(each), Path(each.name).parts
            if content is not None and parts[0] not in before and ".." not in parts:
                (nights / each.name).parent.mkdir(parents=True, exist_ok=True)
                (nights / each.name).write_bytes(content.read())
    return len(night_folders(nights)) - len(before)


def keep(nights: Path, remote: str, branch: str, root: Path = ROOT) -> int:
    """Return how many nights the branch has now."""
    found = night_folders(nights)[-MAX_NIGHTS:]
    paths = "\0".join(str(file.relative_to(nights)) for file in kept_files(nights))
    with tempfile.TemporaryDirectory() as scratch:
        names = {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in AUTHOR.items()}
        environment = {"GIT_INDEX_FILE": str(Path(scratch, "index")), **names}
        git_dir = _git(root, "rev-parse", "--absolute-git-dir").strip()
        at = [f"--git-dir={git_dir}", f"--work-tree={nights.resolve()}"]
        _git(nights, *at, "add", "--force", "--pathspec-from-file=-", "--pathspec-file-nul", given=paths, **environment)
        tree = _git(nights, *at, "write-tree", **environment).strip()
        newest = found[-1].name if found else "none"
        commit = _git(root, "commit-tree", tree, "-m", f"{len(found)} nights, the newest is {newest}", **environment)
    _git(root, "push", "--quiet", "--force", remote, f"{commit.strip()}:refs/heads/{branch}")
    return len(found)


def kept_files(nights: Path) -> Iterator[Path]:
    """The files of the folder that the branch keeps."""
    found = night_folders(nights)[-MAX_NIGHTS:]
    for folder in found:
        patterns = ("**/*",) if folder in found[-NIGHTS_WITH_PAGES:] else TABLES
        yield from (path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file())
    if (nights / ANNOTATIONS_NAME).is_file():
        yield nights / ANNOTATIONS_NAME


def _git(folder: Path, *words: str, given: str | None = None, **environment: str) -> str:
    return _git_bytes(folder, *words, given=given, environment=environment).decode()


def _git_bytes(
    folder: Path, *words: str, given: str | None = None, environment: Mapping[str, str] | None = None
) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        input=None if given is None else given.encode(),
        capture_output=True,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    return done.stdout


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(prog="python -m campaigns.nights.history", description=__doc__)
    words.add_argument("what", choices=("fetch", "keep"))
    words.add_argument("--nights", type=Path, default=NIGHTS, help="folder of all nights (nights)")
    words.add_argument("--remote", default="origin", help="a remote of this clone, or an address (origin)")
    words.add_argument("--branch", default=BRANCH, help=f"the branch ({BRANCH})")
    return words


def main() -> int:
    """Return 0, or 2 and print why if git refuses."""
    given = parser().parse_args()
    do = fetch if given.what == "fetch" else keep
    try:
        count = do(given.nights, given.remote, given.branch)
    except subprocess.CalledProcessError as wrong:
        print(f"git {wrong.cmd[3]} failed: {wrong.stderr.decode().strip()}", file=sys.stderr)  # noqa: T201
        return 2
    verb = "were brought from" if given.what == "fetch" else "are on"
    print(f"{count} nights {verb} the branch {given.branch} of {given.remote}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
