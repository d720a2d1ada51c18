"""Compares the two revisions of fetch sessions in the simulator: the same load, faults and seeds for each variant.

``python -m chaos.search.revisions_compared --seeds 5`` prints the tables of scenarios/README.md, and with ``--picture
docs/comparison.png`` it draws them. It takes some minutes. Each cell is the median over the seeds, with the least and
the greatest value behind it if they differ.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import click

from chaos.search.children import in_children
from chaos.search.fetch_meter import Counted, FetchMeter
from chaos.search.run_sim import play
from chaos.search.session_memory import bytes_of_a_partition
from reference_broker.wire.apis import FETCH_FIRST_REVISION
from reports.verdict import Outcome
from scenarios import loader
from scenarios.model import Scenario
from scenarios.revisions import in_revision

LOST: Final = "response_dropped"
SLOTS: Final = 4
"""The slots of a node under slot pressure. There are six fetchers."""


@dataclass(frozen=True, slots=True)
class Variant:
    """``revision`` is one of FETCHER_REVISIONS, ``behaviour`` one of BEHAVIOURS. No stock client resends, so those that
    do are ``apart``."""

    name: str
    revision: str
    version: int
    behaviour: str = "refetching"
    apart: bool = False


VARIANTS: Final = (
    Variant("final, Fetch 17", "final", 17),
    Variant("final, Fetch 12", "final", 12),
    Variant("first", "first", FETCH_FIRST_REVISION),
    Variant("no sessions, Fetch 17", "none", 17),
    Variant("first, resends", "first", FETCH_FIRST_REVISION, "resending", apart=True),
    Variant("final, resends", "final", 17, "resending", apart=True),
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to fetches.

    Of each fetcher's answers every n-th is lost, for each n in ``lost_every``. Of its requests every n-th arrives
    twice, for each n in ``doubled_every``. The seed draws the first. Two numbers instead of one let faults follow each
    other, so that sometimes the answer to the fetch that repairs a loss is lost, too.
    """

    name: str
    lost_every: tuple[int, ...] = ()
    doubled_every: tuple[int, ...] = ()
    few_slots: bool = False


TROUBLES: Final = (
    Trouble("no loss"),
    Trouble("1 % of answers lost", lost_every=(100,)),
    Trouble("10 % of answers lost", lost_every=(19, 21)),
    Trouble("10 % of requests doubled", doubled_every=(19, 21)),
    Trouble(f"{SLOTS} slots, 10 % of answers lost", lost_every=(19, 21), few_slots=True),
)


@dataclass(frozen=True, slots=True)
class Size:
    """``partitions`` are those of a large session; a small one has half of them, and the topic half as many again."""

    seconds: float = 150.0
    partitions: int = 200


WHOLE: Final = Size()


@dataclass(frozen=True, slots=True)
class Part:
    """One run."""

    variant: Variant
    trouble: Trouble
    seed: int
    size: Size = WHOLE


@dataclass(frozen=True, slots=True)
class Seen:
    """``lost`` is the number of answers that were lost."""

    part: Part
    outcome: Outcome
    lost: int
    counted: Counted


def scenario_of(part: Part) -> Scenario:
    """Returns what is played: one node, six fetchers, three of them with half as many partitions, and two producers."""
    variant, trouble, size = part.variant, part.trouble, part.size
    parsed = loader.parse(
        {
            "title": f"{variant.name}; {trouble.name}",
            "clauses": ["F-3"],
            "needs": ["interceptor"],
            "mutants": [],
            "guarantees": [],
            "min_fetches": 10,
            "min_acked": 10,
            "max_schedule_slip_ms": 3000,
            "cluster": {"config": {"max.incremental.fetch.session.cache.slots": SLOTS} if trouble.few_slots else {}},
            "load": {
                "seconds": size.seconds,
                "idle_appends_s": size.seconds / 2,
                "topics": [{"name": "hot", "partitions": size.partitions * 3 // 2}],
                "fetchers": [
                    _fetchers("small", variant, size.partitions // 2),
                    _fetchers("large", variant, size.partitions),
                ],
                "producers": [{"name": "writers", "count": 2, "topic": "hot", "rate_per_s": 10, "batch_records": 3}],
            },
            "fault": [
                *_faults(LOST, "reply", trouble.lost_every),
                *_faults("request_duplicated", "request", trouble.doubled_every),
            ],
        },
        Path("revisions-compared.toml"),
    )
    return in_revision(parsed, variant.revision)


def _fetchers(name: str, variant: Variant, partitions: int) -> dict[str, object]:
    return {
        "name": name,
        "behaviour": variant.behaviour,
        "count": 3,
        "topic": "hot",
        "partitions": partitions,
        "poll_interval_ms": 1000,
        "max_wait_ms": 200,
        "newest_version": min(variant.version, 17),
    }


def _faults(kind: str, place: str, every: Sequence[int]) -> list[dict[str, object]]:
    match = {"api": "fetch", "client_id": "fetcher-*"}
    return [
        {"name": f"{kind}_{one}", "kind": kind, "on": place, "match": match, "nth": [2, one], "every": one}
        for one in every
    ]


def played(part: Part) -> Seen:
    """Plays one run."""
    verdict, world = play(scenario_of(part), part.seed, also=(FetchMeter,))
    (meter,) = (each for each in world.checks if isinstance(each, FetchMeter))
    lost = sum(times for name, times in verdict.faults if name.startswith(LOST))
    return Seen(part, verdict.outcome, lost, meter.counted)


def parts_for(seeds: Sequence[int]) -> list[Part]:
    """Returns the runs by trouble and variant. Those who resend are played only where answers are lost."""
    return [
        Part(variant, trouble, seed)
        for trouble in TROUBLES
        for variant in VARIANTS
        for seed in seeds
        if trouble.lost_every or not variant.apart
    ]


Value: TypeAlias = Callable[[Seen], float]
COSTS: Final[dict[str, Value]] = {
    "request, B": lambda seen: seen.counted.request_bytes / seen.counted.fetches,
    "response, B": lambda seen: seen.counted.response_bytes / seen.counted.fetches,
    "both in one layout, B": lambda seen: seen.counted.layout_bytes / seen.counted.fetches,
    "partitions named": lambda seen: seen.counted.named / seen.counted.fetches,
    "partitions told": lambda seen: seen.counted.told / seen.counted.fetches,
    "answers lost": lambda seen: seen.lost,
    "full fetches again": lambda seen: seen.counted.full_again,
    "records told twice": lambda seen: seen.counted.twice,
}
"""The columns of the first table. Those up to the partitions are means of one fetch, the others sums over the run."""
KEPT: Final[dict[str, Value]] = {
    "sessions created": lambda seen: seen.counted.sessions,
    "evicted": lambda seen: seen.counted.evicted,
    "most partitions cached": lambda seen: seen.counted.cached,
}
"""The columns of the second table."""
Found: TypeAlias = dict[tuple[Trouble, Variant], list[Seen]]


def on_the_wire(seen: Seen) -> float:
    """Returns the bytes of a fetch and its answer, each in the variant's own layout."""
    return (seen.counted.request_bytes + seen.counted.response_bytes) / seen.counted.fetches


def grouped(seen: Sequence[Seen]) -> Found:
    found: Found = {}
    for each in seen:
        found.setdefault((each.part.trouble, each.part.variant), []).append(each)
    return found


def told(values: Sequence[float]) -> str:
    """Returns the median, and the least and the greatest value if these are written differently."""
    middle, least, most = (_number(each) for each in (median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least} to {most})"


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 20 and value != int(value) else f"{value:,.0f}"


def table(found: Found, columns: dict[str, Value]) -> list[str]:
    """Returns the lines of a Markdown table. The trouble stands only in the first of its rows. A row of zeros is left
    out."""
    lines = [f"| trouble | variant | {' | '.join(columns)} |", "|" + " --- |" * (2 + len(columns))]
    before = None
    for (trouble, variant), seen in found.items():
        if not any(value(each) for value in columns.values() for each in seen):
            continue
        cells = [told([value(each) for each in seen]) for value in columns.values()]
        first = trouble.name if trouble is not before else ""
        lines.append(f"| {first} | {variant.name} | {' | '.join(cells)} |")
        before = trouble
    return lines


def memory_lines() -> list[str]:
    """Says what a cached partition takes in each variant that has sessions."""
    measured = {each.name: bytes_of_a_partition(each.version) for each in VARIANTS if each.revision != "none"}
    return [f"Memory of a cached partition: {', '.join(f'{size:.0f} B ({name})' for name, size in measured.items())}"]


def _progress(line: str) -> None:
    click.echo(line, err=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1 on")
    parser.add_argument("--processes", type=int, default=2, help="how many runs are played at a time")
    parser.add_argument("--picture", type=Path, help="where to draw the first table (PNG)")
    words = parser.parse_args()
    if min(words.seeds, words.processes) < 1:
        parser.error("--seeds and --processes must be at least 1")
    parts, began, seen = parts_for(range(1, words.seeds + 1)), time.perf_counter(), list[Seen]()
    for one in in_children(played, parts, words.processes):
        seen.append(one)
        if len(seen) % words.seeds == 0:
            done = f"{len(seen)} of {len(parts)} runs, {time.perf_counter() - began:.0f} s"
            _progress(f"  {done}: {one.part.trouble.name}; {one.part.variant.name}")
    found = grouped(seen)
    click.echo("\n".join([*table(found, COSTS), "", *table(found, KEPT), "", *memory_lines()]))
    if words.picture is not None:
        from chaos.search.revisions_drawn import draw  # matplotlib: only where it is needed

        draw(found, words.picture)
    wrong = [each.part for each in seen if each.outcome is not Outcome.PASSED]
    for part in wrong:
        _progress(f"NOT PASSED: {part.trouble.name}; {part.variant.name}; seed {part.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
