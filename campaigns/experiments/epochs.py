"""Compares what metadata epochs and leader epochs each prevent: plays scenarios with each of the two on and off, over
the same seeds.

``python -m campaigns.experiments.epochs --seeds 6`` prints the table of docs/experiments.md. It takes some minutes.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

import click

from chaos.sim.one_seed import play_seed
from scenarios import loader
from scenarios.derived import with_clients
from scenarios.model import Scenario

COMPARED = ("19", "21", "41", "mirror")
WAYS = ((False, False), (False, True), (True, False), (True, True))
"""(whether clients have metadata epochs, whether they have leader epochs)"""
OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


@dataclass(frozen=True, slots=True)
class EpochCounts:
    """Counts of clients."""

    rewinds: int
    """Number of positions that were out of range."""
    read_again: int
    """Records between those positions and the earlier ones at which the clients continued."""
    copied_twice: int
    """Records that a mirror copied minus those that were acknowledged; -1 without a mirror."""


def seen(scenario: Scenario, seeds: Iterable[int], *, metadata_epoch: bool, leader_epochs: bool) -> EpochCounts:
    """Return the sums over the seeds, each of which is played once."""
    guarded = with_clients(scenario, metadata_epoch=metadata_epoch, leader_epochs=leader_epochs)
    rewinds = read_again = copied = acked = 0
    for seed in seeds:
        verdict, world = play_seed(guarded, seed)
        moved = [reset for reset in world.history.resets if reset.reason == OUT_OF_RANGE]
        rewinds += len(moved)
        read_again += sum(max(reset.from_offset - reset.to_offset, 0) for reset in moved)
        copied += sum(copy.count for copy in world.history.copies)
        acked += verdict.acked
    return EpochCounts(rewinds, read_again, copied - acked if scenario.load.mirror is not None else -1)


def _shown(found: EpochCounts) -> str:
    if found.copied_twice >= 0:
        return f"{found.rewinds} ({found.copied_twice:,} copied twice)"
    return f"{found.rewinds} ({found.read_again:,} records)" if found.rewinds else "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6, help="how many, from 1 on")
    seeds = range(1, parser.parse_args().seeds + 1)
    click.echo("| scenario | neither | leader epochs (KIP-320) | metadata epoch (KIP-232) | both |")
    click.echo("| --- | --- | --- | --- | --- |")
    for name in COMPARED:
        scenario = loader.find(name)
        cells = [_shown(seen(scenario, seeds, metadata_epoch=one, leader_epochs=other)) for one, other in WAYS]
        click.echo(f"| {scenario.name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
