"""``crucible compare``: one scenario, played repeatedly with one seed.

The scenario is played in both revisions of fetch sessions and without sessions. If it has a mirror, it is played with
metadata epochs and without them instead.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from chaos.live.errors import SetupError
from chaos.live.run_target import Progress
from chaos.live.runner import check_playable, play_scenario
from scenarios.derived import with_clients
from scenarios.model import Scenario
from scenarios.revisions import each_revision, in_revision
from scenarios.vocabulary import FETCHER_REVISIONS

LABELS = {
    "final": "the final revision of sessions",
    "first": "the first revision of sessions",
    "none": "full fetches, without sessions",
}
EPOCHS_KEY = "crucible.bootstrap.metadata.epoch"
OF_EPOCHS = (
    "commit-regression",
    "redelivery",
    "rewinds",
    "nonmonotonic-metadata-epoch",
    "one-content-per-epoch",
    "no-fetch-before-epoch",
)
"""The guarantees that metadata epochs provide. A run without epochs does not promise them, so that it may contain
rewinds."""


@dataclass(frozen=True, slots=True)
class ComparedPlay:
    """One of the runs that are compared."""

    folder: str
    """Name of the run's folder."""
    scenario: Scenario
    label: str
    variant: str = ""
    """The manifest's ``variant``. Empty if the runs differ in their revision, which the manifest has anyway."""


def plays_of(scenario: Scenario) -> list[ComparedPlay]:
    """Return the runs to compare, whatever revisions the scenario names."""
    if scenario.load.mirror is None:
        return [
            ComparedPlay(revision, in_revision(scenario, revision), LABELS[revision]) for revision in FETCHER_REVISIONS
        ]
    played = each_revision(scenario)[0]
    plays = []
    for word, on in (("with", True), ("without", False)):
        label = f"{word} metadata epochs"
        plays.append(ComparedPlay(f"{word}-epochs", with_epochs(played, on), label, variant=label))
    return plays


def with_epochs(scenario: Scenario, on: bool) -> Scenario:
    """Return the scenario with metadata epochs on or off, in the cluster and in its clients.

    A run without epochs is INVALID unless a client rewinds, since it does not show what the epochs prevent (M-15).
    """
    cluster = scenario.cluster
    config = {**dict(cluster.config), EPOCHS_KEY: "1" if on else "0"}
    kept = tuple(guarantee for guarantee in scenario.guarantees if on or guarantee not in OF_EPOCHS)
    return replace(
        with_clients(scenario, metadata_epoch=on),
        guarantees=kept,
        min_rewinds=0 if on else 1,
        cluster=replace(cluster, config=tuple(sorted(config.items()))),
    )


def compare(
    scenario: Scenario, out: Path, seed: int, command: str = "", progress: Progress = lambda _: None
) -> list[tuple[str, Path]]:
    """Play the scenario in each way into ``out``. Return the name and the path of each run's folder.

    Raise SetupError before anything is played.
    """
    plays = plays_of(scenario)
    for each in plays:
        check_playable(each.scenario)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SetupError(f"The folder {out} is not empty: give --out a new one.")
    folders = []
    for number, each in enumerate(plays):
        progress(f"[{number + 1}/{len(plays)}] {each.scenario.title}: {each.label}")
        folder = play_scenario(
            each.scenario, out / each.folder, seed=seed, command=command, progress=progress, variant=each.variant
        )
        folders.append((each.folder, folder.path))
    return folders
