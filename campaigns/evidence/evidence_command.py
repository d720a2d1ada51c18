"""``crucible evidence``: plays the probe and scenarios on targets, keeps what came of it, and writes the pages."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.probe.cases import chosen as cases_of
from bench.targets.loader import bundled, find
from bench.targets.model import Chosen
from campaigns.evidence import client_cases, kept, pages
from campaigns.evidence.plays import played, probed, run_crucible

ALSO = ("kafka@4.1.1", "kafka@4.3.1")
"""Releases that are played instead of the one that ``kafka.toml`` names."""
ONLY_IF_ASKED = ("tansu",)
"""Its build takes too long for a run that did not request it."""


def targets(names: Sequence[str]) -> list[Chosen]:
    """The targets of these names, or those that are played when none is named. Raise TargetError."""
    usual = [*(each for each in bundled() if each not in ("kafka", *ONLY_IF_ASKED)), *ALSO]
    return [find(name) for name in names or usual]


def run(
    names: Sequence[str],
    ids: Sequence[str],
    scenarios: Sequence[str],
    only_scenarios: bool,
    refusal: Callable[[str, str], str],
    say: Callable[[str], None],
    folder: Path = kept.FOLDER,
) -> None:
    """Play the probe, if not ``only_scenarios``, and the scenarios; keep what came of it, and write the pages.
    ``ids``: the cases, of which all others keep their cells; none means all cases. ``refusal``: see
    ``plays.played``.

    Raise UnknownCase, TargetError and PeerError.
    """
    cases = cases_of((), ids)
    for chosen in targets(names):
        found = kept.seen(chosen, folder / "data")
        if not only_scenarios:
            cells, left_out = probed(one_node(chosen), cases, say)
            found.cases = {**found.cases, **cells} if ids else cells
            found.left_out = found.left_out if ids else left_out
        if scenarios:
            found.scenarios |= played(chosen, scenarios, refusal)
        kept.keep(found, folder / "data")
    write(say, folder)


def run_clients(names: Sequence[str], say: Callable[[str], None], folder: Path = kept.FOLDER) -> None:
    """Play the cases of ``crucible client`` on these clients, keep what came of it, and write the pages. Raise
    ClientNotPlayed."""
    for name in names:
        client_cases.keep(client_cases.play(name, run_crucible, say), folder)
    write(say, folder)


def write(say: Callable[[str], None], folder: Path = kept.FOLDER) -> None:
    """Write the pages from what is kept."""
    for path in (*pages.write(kept.everything(folder / "data"), folder), *client_cases.write(folder)):
        say(str(path.relative_to(folder.parent.parent)))


def one_node(chosen: Chosen) -> Chosen:
    """The target with one node, unless it names another number."""
    return chosen if "/" in chosen.text else replace(chosen, nodes=1)
