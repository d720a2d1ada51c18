"""Differential runs of a script: one script of clients' operations, played in two ways that clients must not be able to
distinguish.

A kind names the two ways, such as long work in slices of one item and in whole slices. The script is drawn from the
seed (``differ_scripts``). Each operation begins at its own virtual time, no fault is drawn, and the client waits for
one result before it sends the next request (``ScriptClient``). A result that differs is a defect. The scripts of a kind
avoid features in which its two ways may differ (``Needs``).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import click

from chaos.mutants.mutant import MutantError, applied
from chaos.mutants.registry import by_name
from chaos.search.differ_groups import GroupClient
from chaos.search.differ_reads import ReadingClient
from chaos.search.differ_scripts import Needs, Operation, drawn
from chaos.search.differ_world import BOOT_US, PAUSE_US, SLOT_US, ClientResult, ComparedRun, NodeEnded, NoResponse, Way
from chaos.search.differ_writes import WritingClient
from chaos.seeds import random_for
from chaos.sim.speedups import shared_coding
from chaos.sim.world import short_slices

SEEDS: Final = 20
"""Number of seeds of each kind if none is given."""
THREE_NODES_EVERY: Final = 3
"""The seeds that are multiples of this number play three nodes, where the kind leaves the number open."""
ENDED: Final = "the run ended"
"""Name of the only value of a result that ends a run early. That counts as a difference even if both runs end early,
since the later operations were not compared."""
PROGRESS_EVERY_S: Final = 5.0
LONGEST_VALUE: Final = 2_000
SMALL_SNAPSHOTS: Final = (
    ("metadata.log.max.record.bytes.between.snapshots", "1500"),
    ("crucible.metadata.snapshot.keep.ms", "0"),
)
FEW_SNAPSHOTS: Final = (
    ("metadata.log.max.record.bytes.between.snapshots", str(1 << 40)),
    ("metadata.log.max.snapshot.interval.ms", "0"),
)


@dataclass(frozen=True, slots=True)
class DifferKind:
    """Two ways to play a script."""

    name: str
    left: Way
    right: Way
    words: tuple[str, str]
    """names of the two ways in the description of a difference"""
    nodes: int = 0
    """number of nodes of both ways; 0: the seed decides"""
    needs: Needs = field(default_factory=Needs)
    """features that its scripts have; they lack those in which the two ways may differ"""

    def ways(self, seed: int) -> tuple[Way, Way]:
        if self.left.nodes != self.right.nodes:
            return self.left, self.right
        nodes = self.nodes or (1 if seed % THREE_NODES_EVERY else 3)
        return replace(self.left, nodes=nodes), replace(self.right, nodes=nodes)


KINDS: Final[Mapping[str, DifferKind]] = {
    each.name: each
    for each in (
        DifferKind("slices", Way(), Way(slice_items=1), ("whole slices", "slices of one item")),
        DifferKind(
            "sessions",
            Way(incremental=False),
            Way(),
            ("full fetches", "incremental fetch sessions"),
            needs=Needs(polls=0.5),
        ),
        DifferKind("nodes", Way(), Way(nodes=3), ("one node", "three nodes")),
        # A leader remembers the lowest sequence of batches that it could not verify, until it restarts (KIP-890). A
        # start deletes snapshots that describe deleted records only (Kafka's truncateAndReload).
        DifferKind(
            "restarts",
            Way(),
            Way(restarts=True),
            ("no restart", "restarts in pauses"),
            needs=Needs(deletes_of_producers=False, late_retries=False),
        ),
        DifferKind(
            "metadata",
            Way(restarts=True, settings=FEW_SNAPSHOTS),
            Way(restarts=True, settings=SMALL_SNAPSHOTS),
            ("replay of the metadata log", "metadata snapshots"),
            needs=Needs(pauses=4),
        ),
        # A replay does not find the producers of deleted segments, which a snapshot has.
        DifferKind(
            "producers",
            Way(restarts=True, drops_producer_snapshots=True),
            Way(restarts=True),
            ("replay of the logs", "producer snapshots"),
            needs=Needs(deletes_of_producers=False, pauses=4),
        ),
        # ListOffsets for the largest timestamp (-3) looks at the local records only, as in Kafka.
        DifferKind(
            "tier",
            Way(),
            Way(tiered=True),
            ("local logs", "remote storage"),
            needs=Needs(largest_timestamps=False),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first response that differs."""

    kind: str
    seed: int
    number: int
    """of the operation, from 0"""
    operation: Operation | None
    """None at the start of the nodes"""
    words: tuple[str, str]
    left: ClientResult
    right: ClientResult
    before: tuple[Operation, ...]
    """the operations just before it"""
    mutant: str = ""

    @property
    def command(self) -> str:
        """The command that repeats it."""
        mutant = f" --mutant {self.mutant}" if self.mutant else ""
        return f"./crucible differ {self.kind} --seed {self.seed}{mutant}"


@dataclass(slots=True)
class DifferResult:
    """The result of one kind."""

    kind: str
    seeds: int = 0
    operations: int = 0
    restarts: int = 0
    seconds: float = 0.0
    difference: Difference | None = None


def script(kind: DifferKind, seed: int) -> list[Operation]:
    return drawn(random_for(seed, "differ"), kind.needs)


@dataclass
class ScriptClient(WritingClient, ReadingClient, GroupClient):
    """The one client of a script. Each public method of the three classes is an operation, as is ``pause``."""

    def pause(self, node: int, clean: bool) -> ClientResult:
        """Pause, so that a node may restart."""
        if self.world.way.restarts:
            self.world.restart(node, clean)
            self.topic_leaders.clear()
            self.coordinators.clear()
        return ()


def play_script(
    way: Way, operations: Sequence[Operation], seed: int, tally: DifferResult | None = None
) -> Iterator[ClientResult]:
    """Yield the result to each operation, or a result that says how the run ended before its end."""
    with shared_coding(), short_slices(way.slice_items):
        world = ComparedRun(way, seed)
        try:
            world.start()
            client = ScriptClient(world, by_id=bool(seed % 2))
            at_us = BOOT_US
            for operation in operations:
                world.agenda.run_until(at_us)
                yield getattr(client, operation.name)(*operation.arguments)
                at_us = max(at_us, world.agenda.now_us) if operation.name != "pause" else at_us
                at_us = _next_us(at_us, PAUSE_US if operation.name == "pause" else SLOT_US)
        except (NodeEnded, NoResponse) as error:
            yield ((ENDED, str(error)),)
        if tally is not None:
            tally.restarts += world.restarts


def _next_us(at_us: int, step_us: int) -> int:
    """Return when the next operation begins. All begin at multiples of SLOT_US, also after one that took longer."""
    return (at_us + step_us) // SLOT_US * SLOT_US


def compare(kind: DifferKind, seed: int, tally: DifferResult, mutant: str = "") -> Difference | None:
    """Play one seed both ways. Return the first difference."""
    left, right = kind.ways(seed)
    operations = script(kind, seed)
    results = list(play_script(left, operations, seed, tally))
    tally.seeds += 1
    for number, result in enumerate(play_script(right, operations, seed, tally)):
        tally.operations += 1
        other = results[number] if number < len(results) else ()
        if result != other or (result and result[0][0] == ENDED):
            before = tuple(operations[max(0, number - 4) : number])
            return Difference(kind.name, seed, number, operations[number], kind.words, other, result, before, mutant)
    return None


def search_difference(
    kind: DifferKind, seeds: Sequence[int], mutant: str = "", progress: Callable[[DifferResult], None] = lambda _: None
) -> DifferResult:
    """Play the seeds until the first difference. ``mutant`` is the name of the one that is applied. ``progress`` is
    called before each seed."""
    tally, started = DifferResult(kind.name), time.perf_counter()
    for seed in seeds:
        tally.seconds = time.perf_counter() - started
        progress(tally)
        tally.difference = compare(kind, seed, tally, mutant)
        if tally.difference is not None:
            break
    tally.seconds = time.perf_counter() - started
    return tally


def explain(difference: Difference) -> Iterator[str]:
    """Yield the lines about a difference."""
    yield f"  seed {difference.seed}, operation {difference.number}: {difference.operation}"
    yield f"  after {', '.join(map(str, difference.before)) or 'the start'}"
    left, right = dict(_flat(difference.left)), dict(_flat(difference.right))
    for name in dict.fromkeys((*left, *right)):
        if left.get(name) != right.get(name):
            yield f"  {name}"
            for words, values in zip(difference.words, (left, right), strict=True):
                yield f"    {words}: {_shown(values[name]) if name in values else 'nothing'}"
    for words, result in zip(difference.words, (difference.left, difference.right), strict=True):
        yield f"  whole result, {words}: {_shown(result)}"
    yield f"  {difference.command}"


def _flat(result: ClientResult, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value with the path of its names. A result may have results as values, and rows."""
    for name, value in result:
        if isinstance(value, tuple) and value and all(_is_named(each) for each in value):
            yield from _flat(value, f"{path}{name}: ")  # type: ignore[arg-type]
        elif isinstance(value, tuple):
            yield f"{path}{name}: number", len(value)
            for index, row in enumerate(value):
                yield f"{path}{name} {index}", row
        else:
            yield f"{path}{name}", value


def _is_named(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}... ({len(text)} characters)"


# --- the command ----------------------------------------------------------------------------------------------------

KILLED_BY: Final[Mapping[str, Sequence[str]]] = {
    "slices": ("last_slice_skipped", "markers_of_first_slice_only"),
    "sessions": ("only_records_count_as_changes", "seek_back_not_noted"),
    "nodes": ("markers_of_other_leaders_abort",),
    "restarts": ("groups_not_loaded", "offsets_not_loaded"),
    "metadata": ("topic_configs_missing_from_snapshot",),
    "producers": ("batches_behind_snapshot_ignored", "snapshot_without_producers"),
    "tier": ("deleted_before_listed",),
}
"""Mutants that each kind kills."""


@dataclass(frozen=True, slots=True)
class DifferOptions:
    """Options of ``crucible differ``. No names are all kinds."""

    names: Sequence[str]
    seed: int = 1
    seeds: int = SEEDS
    mutant: str | None = None
    with_mutants: bool = False


def differ_command(options: DifferOptions) -> int:
    """Play each kind, print the results, and return the exit code: 0, 1 (a difference, or with ``with_mutants`` a
    mutant that survives), or 2."""
    unknown = [name for name in options.names if name not in KINDS]
    if unknown:
        click.echo(f"crucible differ: there is no kind {unknown[0]!r}; there are: {', '.join(KINDS)}", err=True)
        return 2
    red = False
    try:
        for name in options.names or KINDS:
            red |= _search_and_report(name, options, options.mutant) is not None
            for mutant in KILLED_BY[name] if options.with_mutants else ():
                survives = _search_and_report(name, options, mutant) is None
                click.echo(f"{name}: {mutant} {'SURVIVED' if survives else 'killed'}")
                red |= survives
    except MutantError as error:
        click.echo(f"crucible differ: {error}", err=True)
        return 2
    return int(red)


def _search_and_report(name: str, options: DifferOptions, mutant: str | None) -> Difference | None:
    shown_s = 0.0

    def progress(tally: DifferResult) -> None:
        nonlocal shown_s
        if tally.seconds - shown_s >= PROGRESS_EVERY_S:
            shown_s = tally.seconds
            click.echo(f"{name}: {tally.seeds} of {options.seeds} seeds, no difference, {shown_s:.0f} s", err=True)

    with applied(by_name(mutant) if mutant else None):
        seeds = range(options.seed, options.seed + options.seeds)
        tally = search_difference(KINDS[name], seeds, mutant or "", progress)
    outcome = "DIFFERS" if tally.difference is not None else "the same"
    ways = " and ".join(KINDS[name].words)
    click.echo(
        f"{name}: {outcome} ({ways}): {tally.seeds} seeds, {tally.operations} operations, {tally.restarts} restarts, "
        f"{tally.seconds:.1f} s"
    )
    if tally.difference is not None:
        for line in explain(tally.difference):
            click.echo(line)
    return tally.difference
