"""Compares the trace hash of every scenario with an older one. A refactoring must not change it.

``python -m chaos.search.trace_hashes --out before.jsonl`` before the change, then ``--against before.jsonl`` after it.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from chaos.mutants import mutants_of
from chaos.sim.one_seed import play_seed
from scenarios import loader
from scenarios.model import Scenario
from scenarios.revisions import each_revision


@dataclass(frozen=True, slots=True)
class HashedPlay:
    """One play and its verdict."""

    scenario: str
    mutant: str
    seed: int
    verdict: str
    broken: tuple[str, ...]
    """Violated guarantees, sorted by name."""
    events: int
    trace_hash: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.scenario, self.mutant, self.seed


def plays_of(names: Sequence[str], seeds: Iterable[int], with_mutants: bool) -> tuple[tuple[Scenario, str, int], ...]:
    """Return what to play: each scenario in all its revisions over all seeds, and its mutants on the first seed."""
    kept = tuple(seeds)
    wanted = [loader.find(name) for name in names] if names else loader.load_all()
    return tuple(
        (revised, mutant, seed)
        for scenario in wanted
        for revised in each_revision(scenario)
        for mutant in ("", *(mutants_of(revised) if with_mutants else ()))
        for seed in (kept if not mutant else kept[:1])
    )


def hashed_plays(plays: Sequence[tuple[Scenario, str, int]], processes: int) -> Iterator[HashedPlay]:
    """Yield each play with its verdict, in the order of ``plays``."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_hashed, plays)


def _hashed(wanted: tuple[Scenario, str, int]) -> HashedPlay:
    scenario, mutant, seed = wanted
    verdict = play_seed(scenario, seed, mutant or None, hashed=True).verdict
    broken = tuple(sorted(verdict.broken))
    return HashedPlay(verdict.scenario, mutant, seed, verdict.outcome.name, broken, verdict.events, verdict.trace_hash)


def differences(before: Iterable[HashedPlay], after: Iterable[HashedPlay], *, verdicts_only: bool = False) -> list[str]:
    """Return a sentence for each play of ``after`` that differs from the same play of ``before``, or is not there."""
    known = {hashed_play.key: hashed_play for hashed_play in before}
    lines = []
    for play in after:
        old = known.get(play.key)
        name = " ".join(filter(None, (play.scenario, play.mutant, f"seed {play.seed}")))
        if old is None:
            lines.append(f"{name} was not played before")
        elif (old.verdict, old.broken) != (play.verdict, play.broken):
            lines.append(f"{name}: {old.verdict} {list(old.broken)} became {play.verdict} {list(play.broken)}")
        elif not verdicts_only and old.trace_hash != play.trace_hash:
            lines.append(f"{name}: another trace hash ({old.events} events, now {play.events})")
    return lines


def read(path: Path) -> list[HashedPlay]:
    return [msgspec.json.decode(line, type=HashedPlay) for line in path.read_bytes().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="files, stems or numbers (default: every scenario)")
    parser.add_argument("--seeds", type=int, default=2, help="how many seeds of each scenario")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--with-mutants", action="store_true", help="also each mutant, on the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="keep what was played in this file, one JSON line a play")
    parser.add_argument("--against", type=Path, help="compare with this file; exit code 1 if anything differs")
    parser.add_argument("--verdicts-only", action="store_true", help="let trace hashes differ, but no verdict")
    wanted = parser.parse_args()
    seeds = range(wanted.seed, wanted.seed + wanted.seeds)
    plays = list(hashed_plays(plays_of(wanted.scenarios, seeds, wanted.with_mutants), wanted.processes))
    if wanted.out is not None:
        wanted.out.write_bytes(b"".join(msgspec.json.encode(play) + b"\n" for play in plays))
    lines = (
        [] if wanted.against is None else differences(read(wanted.against), plays, verdicts_only=wanted.verdicts_only)
    )
    for line in lines:
        click.echo(line)
    click.echo(f"{len(plays)} plays" + (f", {len(lines)} differ" if wanted.against is not None else ""))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
