"""``crucible compare``: one scenario with the same load, faults and seed in both revisions of fetch sessions and
without sessions, one after the other; where a mirror copies, with metadata epochs and without instead."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.live.errors import SetupError
from chaos.live.runner import Progress, check_playable, play
from scenarios.epochs import with_clients
from scenarios.model import Scenario
from scenarios.revisions import each_revision, in_revision
from scenarios.vocabulary import FETCHER_REVISIONS

TOLD = {
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
"""Guarantees that metadata epochs give: without them a rewind is what shall be seen."""


@dataclass(frozen=True, slots=True)
class Play:
    """One of the runs. ``folder``: its name; ``variant``: as the manifest says it, empty: its revision says it."""

    folder: str
    scenario: Scenario
    told: str
    variant: str = ""


def plays_of(scenario: Scenario) -> list[Play]:
    """Whatever the scenario is written for."""
    if scenario.load.mirror is not None:
        return list(_with_and_without_epochs(each_revision(scenario)[0]))
    return [Play(each, in_revision(scenario, each), TOLD[each]) for each in FETCHER_REVISIONS]


def _with_and_without_epochs(scenario: Scenario) -> Iterator[Play]:
    for folder, on in (("with-epochs", True), ("without-epochs", False)):
        variant = f"{folder.partition('-')[0]} metadata epochs"
        yield Play(folder, with_epochs(scenario, on), variant, variant)


def with_epochs(scenario: Scenario, on: bool) -> Scenario:
    """The mechanism on or off, in the cluster and in its clients; nothing else differs."""
    cluster = scenario.cluster
    config = {**dict(cluster.config), EPOCHS_KEY: "1" if on else "0"}
    kept = tuple(each for each in scenario.guarantees if on or each not in OF_EPOCHS)
    return replace(
        with_clients(scenario, metadata_epoch=on),
        guarantees=kept,
        cluster=replace(cluster, config=tuple(sorted(config.items()))),
    )


def compare(
    scenario: Scenario, out: Path, seed: int, command: str = "", progress: Progress = lambda _: None
) -> list[tuple[str, Path]]:
    """Plays it in each way, into ``out``; (folder's name, folder) of each run. Raises SetupError before anything is
    played."""
    plays = plays_of(scenario)
    for each in plays:
        check_playable(each.scenario)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SetupError(f"The folder {out} is not empty: give --out a new one.")
    folders = []
    for number, each in enumerate(plays):
        progress(f"[{number + 1}/{len(plays)}] {each.scenario.title}: {each.told}")
        folder = play(
            each.scenario, out / each.folder, seed=seed, command=command, progress=progress, variant=each.variant
        )
        folders.append((each.folder, folder.path))
    return folders
