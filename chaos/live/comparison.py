"""``crucible compare``: one scenario with the same load, faults and seed in both revisions of fetch sessions and
without sessions, one after the other."""

from pathlib import Path

from chaos.live.errors import SetupError
from chaos.live.runner import Progress, check_playable, play
from scenarios.model import Scenario
from scenarios.revisions import in_revision
from scenarios.vocabulary import FETCHER_REVISIONS

TOLD = {
    "final": "the final revision of sessions",
    "first": "the first revision of sessions",
    "none": "full fetches, without sessions",
}


def compare(
    scenario: Scenario, out: Path, seed: int, command: str = "", progress: Progress = lambda _: None
) -> list[tuple[str, Path]]:
    """Plays it in each revision, whatever it is written for, into ``out``; (revision, folder) of each run. Raises
    SetupError before anything is played."""
    plays = [(revision, in_revision(scenario, revision)) for revision in FETCHER_REVISIONS]
    for _, each in plays:
        check_playable(each)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SetupError(f"The folder {out} is not empty: give --out a new one.")
    folders = []
    for number, (revision, each) in enumerate(plays):
        progress(f"[{number + 1}/{len(plays)}] {each.title}: {TOLD[revision]}")
        folder = play(each, out / revision, seed=seed, command=command, progress=progress)
        folders.append((revision, folder.path))
    return folders
