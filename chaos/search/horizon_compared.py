"""Compares KIP-630's snapshots with the tombstone horizon, which its page rejects, and with neither.

``python -m chaos.search.horizon_compared --seeds 5`` prints the table of scenarios/README.md. It takes some minutes.
All variants have the same load and the same cut, in the simulator: a producer writes and deletes keys in turn, and one
follower and one reader hear nothing for a while. Each cell is the median over the seeds, with the least and the
greatest value behind it if they differ.

Snapshots exist only for the metadata log (S-13). So there the same keys are settings of topics, which the same writer
sets and deletes at the same times, and an observer is cut off. No client reads that log, so it has no reader.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from bench.fleet.behaviours.producers import KeyedProducer
from chaos.promises import is_judged
from chaos.search.catch_up import CatchUp, Caught, FollowerCaughtUp, ObserverCaughtUp, ReaderCaughtUp
from chaos.search.children import in_children
from chaos.search.revisions_compared import told
from chaos.search.settings_writer import SettingsWriter, topics_for
from chaos.seeds import random_for
from chaos.sim.fleet import Client
from chaos.sim.world import World
from scenarios import loader
from scenarios.model import Scenario

GONE_AFTER_MS: Final = 3_000
"""Tombstones may go after this time, and so may the metadata log before a snapshot."""
PIECE_BYTES: Final = 4_096
"""An answer to a fetch has so many bytes, as if the log were much larger than one answer."""


@dataclass(frozen=True, slots=True)
class Variant:
    """``kinds`` measure those that are cut off. The cleaner waits until ``dirty_ratio`` of the log is dirty."""

    name: str
    kinds: tuple[type[CatchUp], ...]
    horizon: bool = False
    snapshots: bool = False
    dirty_ratio: float = 0.01


BOTH: Final = (FollowerCaughtUp, ReaderCaughtUp)
VARIANTS: Final = (
    Variant("snapshots (S)", (ObserverCaughtUp,), snapshots=True),
    Variant("horizon (H)", BOTH, horizon=True),
    Variant("horizon (H), lazy cleaner", BOTH, horizon=True, dirty_ratio=0.25),
    Variant("neither", BOTH),
)


@dataclass(frozen=True, slots=True)
class Cut:
    name: str
    seconds: float


CUTS: Final = (Cut("2 s", 2.0), Cut("12 s", 12.0))
"""Shorter and longer than tombstones stay."""


@dataclass(frozen=True, slots=True)
class Size:
    """The cut begins some ``before_s`` after the load, which goes on for ``after_s`` after the heal."""

    keys: int = 600
    before_s: float = 20.0
    after_s: float = 9.0


WHOLE: Final = Size()


@dataclass(frozen=True, slots=True)
class Part:
    """One run."""

    variant: Variant
    cut: Cut
    seed: int
    size: Size = WHOLE


@dataclass(frozen=True, slots=True)
class Seen:
    """``caught`` tells of each that was cut off, by ``CatchUp.who``. ``broken`` are the guarantees that do not hold."""

    part: Part
    caught: dict[str, Caught]
    broken: tuple[str, ...]


def scenario_of(part: Part) -> Scenario:
    """Returns what is played: three voters, an observer, and a compacted topic with three replicas."""
    variant, cut, size = part.variant, part.cut, part.size
    topics: list[dict[str, Any]] = [
        {
            "name": "table",
            "partitions": 1,
            "replicas": 3,
            "config": {
                "min.insync.replicas": 2,
                "cleanup.policy": "compact",
                "segment.bytes": 4_000,
                "min.cleanable.dirty.ratio": variant.dirty_ratio,
                "delete.retention.ms": GONE_AFTER_MS,
            },
        }
    ]
    reader = {
        "name": "readers",
        "count": 1,
        "topics": ["table"],
        "protocol": "assigned",
        "view": True,
        "tombstone_horizon": variant.horizon,
        "metadata_epoch": False,
        "max_bytes": PIECE_BYTES,
        "poll_interval_ms": 100,
    }
    node = "observer" if variant.snapshots else "partition_follower"
    faults: list[dict[str, Any]] = [
        {
            "name": "node_cut_off",
            "kind": "node_isolated",
            "node": node,
            "at_s": size.before_s,
            "sim_at_s": size.before_s,
            "duration_s": cut.seconds,
        },
        {
            "name": "reader_cut_off",
            "kind": "response_dropped",
            "on": "reply",
            "node": "any",
            "match": {"api": "fetch", "client_id": ReaderCaughtUp.client_id},
            "every": 1,
            "times": 0,
            "after_s": size.before_s,
            "until_s": size.before_s + cut.seconds,
        },
    ]
    if variant.snapshots:
        others = {"partitions": 1, "replicas": 3, "config": {"min.insync.replicas": 2}}
        topics += [{"name": each, **others} for each in topics_for(size.keys)]
    return loader.parse(
        {
            "title": f"{variant.name}; cut off for {cut.name}",
            "clauses": ["S-15", "H-3", "H-4"],
            "needs": ["interceptor", "proxy", "drafts"],
            "mutants": [],
            "guarantees": [],
            "min_fetches": 0,
            "min_acked": 0,
            "max_schedule_slip_ms": 30_000,
            "cluster": {"nodes": 3, "observers": 1, "config": _config(variant)},
            "load": {
                "seconds": size.before_s + cut.seconds + size.after_s,
                "request_timeout_ms": 1_000,
                "topics": topics,
                "producers": [
                    {
                        "name": "writer",
                        "count": 1,
                        "topic": "table",
                        "rate_per_s": 40,
                        "batch_records": 1,
                        "record_bytes": 48,
                        "keys": size.keys,
                        "delete_percent": 40,
                    }
                ],
                "groups": [] if variant.snapshots else [reader],
            },
            "fault": faults[:1] if variant.snapshots else faults,
        },
        Path("horizon-compared.toml"),
    )


def _config(variant: Variant) -> dict[str, object]:
    return {
        "crucible.tombstone.horizon.enable": variant.horizon,
        "broker.heartbeat.interval.ms": 300,
        "broker.session.timeout.ms": 1_500,
        "replica.lag.time.max.ms": 1_500,
        "log.cleaner.backoff.ms": 200,
        "replica.fetch.max.bytes": PIECE_BYTES,
        "replica.fetch.response.max.bytes": PIECE_BYTES,
        "crucible.metadata.snapshot.fetch.max.bytes": PIECE_BYTES,
        "metadata.log.segment.bytes": PIECE_BYTES,
        "metadata.log.max.record.bytes.between.snapshots": 2 * PIECE_BYTES,
        "metadata.max.retention.ms": GONE_AFTER_MS,
        "crucible.metadata.snapshot.keep.ms": GONE_AFTER_MS,
    }


class Compared(World):
    """A run that knows when its cut ends. With snapshots its writers write to the metadata log."""

    part: Part

    def _load(self, writers: Sequence[Client], workers: Sequence[Client], readers: Sequence[Client]) -> None:
        for check in self.checks:
            if isinstance(check, ReaderCaughtUp):
                heal_s = self.part.size.before_s + self.part.cut.seconds
                check.heal_us = self.agenda.now_us + int(heal_s * 1_000_000)
        if self.part.variant.snapshots:
            writers = [self._client(each) for each in self._writers_of_settings(writers)]
        super()._load(writers, workers, readers)

    def _writers_of_settings(self, writers: Sequence[Client]) -> Iterator[SettingsWriter]:
        for each in writers:
            if isinstance(each.behaviour, KeyedProducer):
                random = random_for(self.seed, each.behaviour.process)
                yield SettingsWriter(each.behaviour.plan, each.behaviour.settings, random)


def played(part: Part) -> Seen:
    """Plays one run. Raises RunStuckError if it does not come to its end."""
    world = Compared(scenario_of(part), part.seed, also=part.variant.kinds)
    world.part = part
    world.play()
    broken = {
        violation.guarantee
        for check in world.checks
        for violation in check.violations
        if is_judged(world.scenario, violation.guarantee)
    }
    caught = {check.who: check.caught for check in world.checks if isinstance(check, CatchUp)}
    return Seen(part, caught, tuple(sorted(broken)))


def parts_for(seeds: Sequence[int]) -> list[Part]:
    return [Part(variant, cut, seed) for cut in CUTS for variant in VARIANTS for seed in seeds]


Value: TypeAlias = Callable[[Caught], float]
COLUMNS: Final[dict[str, Value]] = {
    "keys held wrongly": lambda caught: caught.wrong,
    "bytes sent again": lambda caught: caught.again_bytes,
    "bytes sent in all": lambda caught: caught.sent_bytes,
    "ms to catch up": lambda caught: caught.after_us // 1000,
    "began anew": lambda caught: caught.anew,
}
Row: TypeAlias = tuple[Cut, Variant, str]
"""The cut, the variant, and who was cut off."""
Found: TypeAlias = dict[Row, list[Caught]]


def grouped(seen: Sequence[Seen]) -> Found:
    found: Found = {}
    for each in seen:
        for who, caught in each.caught.items():
            found.setdefault((each.part.cut, each.part.variant, who), []).append(caught)
    return found


def table(found: Found) -> list[str]:
    """Returns the lines of a Markdown table."""
    lines = [f"| cut off for | variant | who | {' | '.join(COLUMNS)} |", "|" + " --- |" * (3 + len(COLUMNS))]
    before = None
    for (cut, variant, who), caught in found.items():
        cells = [told([value(each) for each in caught]) for value in COLUMNS.values()]
        lines.append(f"| {cut.name if cut != before else ''} | {variant.name} | {who} | {' | '.join(cells)} |")
        before = cut
    return lines


def _progress(line: str) -> None:
    click.echo(line, err=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1 on")
    parser.add_argument("--processes", type=int, default=2, help="how many runs are played at a time")
    words = parser.parse_args()
    if min(words.seeds, words.processes) < 1:
        parser.error("--seeds and --processes must be at least 1")
    parts, began, seen = parts_for(range(1, words.seeds + 1)), time.perf_counter(), list[Seen]()
    for one in in_children(played, parts, words.processes):
        seen.append(one)
        if len(seen) % words.seeds == 0:
            done = f"{len(seen)} of {len(parts)} runs, {time.perf_counter() - began:.0f} s"
            _progress(f"  {done}: {one.part.cut.name}; {one.part.variant.name}")
    click.echo("\n".join(table(grouped(seen))))
    wrong = [each for each in seen if each.broken]
    for each in wrong:
        part = each.part
        _progress(f"BROKEN: {part.cut.name}; {part.variant.name}; seed {part.seed}: {', '.join(each.broken)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
