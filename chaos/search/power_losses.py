"""Power losses at every disk operation of a script.

A script (``Script``) runs a part of the broker for a while over a ``SimDisk``, and records the data that a power loss
must not lose. Before each operation (append, write, truncate, rename, delete, sync) the search forks the disk, loses
the power there with one outcome after the other, and resumes the part over the remaining data. The script itself is
played once.

A resume compares what it finds with a replay of the log's own batches, uses the part, and is followed by more losses:
one before anything else is synced, and one after the resumed part has acknowledged something new. With ``deep`` there
is also one before each operation of the resume itself.

Outcomes that leave the same files are resumed once.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from random import Random
from typing import ClassVar

import click

from chaos.mutants.mutant import MutantError, applied
from chaos.mutants.power_losses import KILLED_BY, found_mutant
from chaos.sim.disk import DrawnLosses, Losses, SimDisk, Synced
from reference_broker.ports.disk import Buffer


class Differs(Exception):  # noqa: N818 - says what was found
    """The recovered state differs from the batches, or from the acknowledged state. The message describes how."""


def require(holds: bool, explanation: str) -> None:
    """Raise Differs with this explanation unless ``holds``."""
    if not holds:
        raise Differs(explanation)


class Resumed(ABC):
    """A part of the broker that was opened over a disk, and has been compared."""

    @abstractmethod
    def use(self) -> Hashable:
        """Serve and accept something new, up to its acknowledgement. Return what must survive after that. Raise
        Differs."""


class Script(ABC):
    """One life of a part of the broker. Each kind is a subclass."""

    name: ClassVar[str]
    about: ClassVar[str]

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk

    @abstractmethod
    def play(self) -> None:
        """Run from an empty disk to the end. Each run makes the same operations."""

    @abstractmethod
    def owed(self) -> Hashable:
        """Return what a power loss now must leave, as a value that never changes."""

    @classmethod
    @abstractmethod
    def resume(cls, disk: SimDisk, owed: Hashable) -> Resumed:
        """Open the part as a restarted process does, and compare it. Raise Differs."""


# --- outcomes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedLosses:
    """An extreme: the same outcome for all names, and for the unsynced bytes of all files of one kind."""

    keeps_names: bool
    undoes: bool
    old: float
    """share of its unsynced bytes that a file keeps of which something is durable"""
    new: float
    """the same for the other files"""
    are_zeros: bool = False

    def keeps_change(self) -> bool:
        return self.keeps_names

    def undoes_rewrite(self) -> bool:
        return self.undoes

    def kept_size(self, durable: int, size: int) -> int:
        return durable + int((size - durable) * (self.old if durable else self.new))

    def written_size(self, durable: int, size: int) -> int:
        return durable if self.are_zeros else size


KILLED = "killed"
"""The process ends and the power stays: nothing is lost yet, and nothing more is durable."""
NOTHING, ALL = "nothing", "all"
FIXED: Mapping[str, Losses] = {
    NOTHING: FixedLosses(keeps_names=False, undoes=True, old=0.0, new=0.0),
    ALL: FixedLosses(keeps_names=True, undoes=False, old=1.0, new=1.0),
    "all-undone": FixedLosses(keeps_names=True, undoes=True, old=1.0, new=1.0),
    "bytes": FixedLosses(keeps_names=False, undoes=False, old=1.0, new=1.0),
    "names": FixedLosses(keeps_names=True, undoes=False, old=0.0, new=0.0),
    "names-undone": FixedLosses(keeps_names=True, undoes=True, old=0.0, new=0.0),
    "new-files": FixedLosses(keeps_names=True, undoes=False, old=0.0, new=1.0),
    "old-files": FixedLosses(keeps_names=True, undoes=False, old=1.0, new=0.0),
    "torn": FixedLosses(keeps_names=True, undoes=False, old=0.5, new=0.5),
    "zeros": FixedLosses(keeps_names=True, undoes=False, old=1.0, new=1.0, are_zeros=True),
}
"""The unsynced writes that survive. With ``undone``, truncations and rewrites are undone."""
DRAWN = 3
"""Number of seeded mixtures at each operation."""
OUTCOMES = (KILLED, *FIXED, *(f"drawn-{number}" for number in range(1, DRAWN + 1)))
SECOND = (NOTHING, ALL, "drawn-1")
"""Outcomes of a loss that follows on a resume."""


def lose(disk: SimDisk, outcome: str, salt: str) -> SimDisk:
    """Return what the outcome leaves of the disk, for the next process. ``salt`` seeds the mixtures."""
    left = disk.fork()
    if outcome != KILLED:
        left.power_loss(FIXED.get(outcome) or DrawnLosses(Random(f"{salt} {outcome}")))
    left.process_started()
    return left


def lost(before: SimDisk, after: SimDisk) -> str:
    """Return what a loss took, file by file."""
    old, new = dict(before.all_files()), dict(after.all_files())
    parts = [f"{path} is gone" for path in old if path not in new]
    parts += [f"{path} is back" for path in new if path not in old]
    for path in old.keys() & new.keys():
        was, now = old[path], new[path]
        if was.startswith(now) and was != now:
            parts.append(f"{path} has {len(now)} of {len(was)} bytes")
        elif was != now:
            parts.append(f"{path} has other content ({len(was)} bytes before, {len(now)} now)")
    return "; ".join(sorted(parts)) or "no file differs"


# --- the search -----------------------------------------------------------------------------------------------------


class PointDisk(SimDisk):
    """Calls ``before`` with the name of each operation that changes files or makes them durable, before it takes
    place."""

    def __init__(self, before: Callable[[SimDisk, str], None]) -> None:
        super().__init__(Random(0))
        self._before = before
        self._begun: dict[Synced, Sequence[str]] = {}

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._before(self, f"append to {path}")
        return super().append(path, buffers)

    def truncate(self, path: str, size: int) -> None:
        self._before(self, f"truncate {path} to {size} bytes")
        super().truncate(path, size)

    def write(self, path: str, data: Buffer) -> None:
        self._before(self, f"write {path}")
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._before(self, f"rename {source} to {target.rpartition('/')[2]}")
        super().rename(source, target)

    def delete(self, path: str) -> None:
        if self.exists(path):
            self._before(self, f"delete {path}")
        super().delete(path)

    def begin_sync(self, paths: Sequence[str]) -> Synced:
        begun = super().begin_sync(paths)
        self._begun[begun] = paths
        return begun

    def finish_sync(self, synced: Synced) -> None:
        self._before(self, f"end of the sync of {', '.join(self._begun.pop(synced, ()))}")
        super().finish_sync(synced)


@dataclass(frozen=True, slots=True)
class LossViolation:
    """The first power loss after which something differs."""

    kind: str
    point: int
    """number of the operation, counted from 0, before which the power was lost"""
    operation: str
    outcome: str
    then: str
    """the loss that followed on the resume, if it showed the difference"""
    lost: str
    explanation: str
    mutant: str = ""

    @property
    def command(self) -> str:
        """The command that repeats this loss alone."""
        mutant = f" --mutant {self.mutant}" if self.mutant else ""
        return f"./crucible power-losses {self.kind} --point {self.point} --outcome {self.outcome}{mutant}"


@dataclass(slots=True)
class LossResult:
    """The result of one kind."""

    kind: str
    points: int = 0
    losses: int = 0
    """power losses at these points, with all outcomes"""
    resumes: int = 0
    """resumes, also those that followed on a second loss"""
    seconds: float = 0.0
    violation: LossViolation | None = None


class _Stop(BaseException):
    """Ends the script at the first violation. The broker must not catch it."""


@dataclass(slots=True)
class _Search:
    """One run over one script."""

    kind: type[Script]
    outcomes: Sequence[str]
    point: int | None
    deep: bool
    mutant: str
    found: LossResult = field(init=False)
    script: Script = field(init=False)
    _seen: set[int] = field(default_factory=set)
    _operation: str = ""

    def __post_init__(self) -> None:
        self.found = LossResult(self.kind.name)

    def run(self) -> LossResult:
        started = time.perf_counter()
        try:
            self.script = self.kind(PointDisk(self._at))
            self.script.play()
            self._at(self.script.disk, "the end")
        except _Stop:
            pass
        self.found.seconds = time.perf_counter() - started
        return self.found

    def _at(self, disk: SimDisk, operation: str) -> None:
        number = self.found.points
        self.found.points += 1
        if self.point is not None and number != self.point:
            return
        self._operation = operation
        owed = self.script.owed()
        for outcome in self.outcomes:
            self.found.losses += 1
            left = lose(disk, outcome, f"{number}")
            # What is durable is not in the files, and after a kill it is not all of them.
            key = hash((number if outcome == KILLED else -1, tuple(left.all_files()), owed))
            if key not in self._seen:
                self._seen.add(key)
                self._judge(disk, left, outcome, owed)

    def _judge(self, disk: SimDisk, left: SimDisk, outcome: str, owed: Hashable) -> None:
        taken = lost(disk, left)

        def violated(then: str, error: Exception) -> _Stop:
            explanation = str(error) if isinstance(error, Differs) else f"{type(error).__name__}: {error}"
            number = self.found.points - 1
            self.found.violation = LossViolation(
                self.kind.name, number, self._operation, outcome, then, taken, explanation, self.mutant
            )
            return _Stop()

        def again(resumed_on: SimDisk, when: str, owed: Hashable, outcomes: Sequence[str]) -> None:
            for second in outcomes:
                twice = lose(resumed_on, second, f"{self.found.points} {when}")
                self.found.resumes += 1
                try:
                    self.kind.resume(twice, owed)
                except Exception as error:
                    then = f"and again {when}, outcome {second}: {lost(resumed_on, twice)}"
                    raise violated(then, error) from error

        inner = self._inner(left, again, owed) if self.deep else left
        self.found.resumes += 1
        try:
            resumed = self.kind.resume(inner, owed)
        except Exception as error:
            raise violated("", error) from error
        again(inner, "right after the resume", owed, SECOND)
        try:
            owed = resumed.use()
        except Exception as error:
            raise violated("", error) from error
        again(inner, "after new work", owed, SECOND[:1])

    def _inner(
        self, left: SimDisk, again: Callable[[SimDisk, str, Hashable, Sequence[str]], None], owed: Hashable
    ) -> SimDisk:
        """Return the same disk, with a loss before each operation of the resume and of the new work."""
        count = 0

        def before(disk: SimDisk, operation: str) -> None:
            nonlocal count
            count += 1
            again(disk, f"before operation {count} of the resume ({operation})", owed, SECOND[:2])

        inner = PointDisk(before)
        inner.mount(left.unmount())
        inner.process_started()
        return inner


def search_violation(
    kind: type[Script],
    outcomes: Sequence[str] = OUTCOMES,
    point: int | None = None,
    deep: bool = False,
    mutant: str = "",
) -> LossResult:
    """Lose the power before each operation of the script, or only before operation ``point``. Stop at the first
    violation. ``mutant`` is the name of the one that is applied, for the command that repeats it."""
    return _Search(kind, outcomes, point, deep, mutant).run()


def report(result: LossResult) -> Iterator[str]:
    """Yield the lines for the terminal."""
    speed = result.resumes / max(result.seconds, 1e-9)
    outcome = "PASSED" if result.violation is None else "FAILED"
    yield (
        f"{result.kind}: {outcome}, {result.points} operations, {result.losses} power losses, "
        f"{result.resumes} resumes, {speed:.0f} resumes/s"
    )
    violation = result.violation
    if violation is not None:
        yield f"  before operation {violation.point} ({violation.operation}), outcome {violation.outcome}"
        yield f"  lost: {violation.lost}"
        if violation.then:
            yield f"  {violation.then}"
        yield f"  {violation.explanation}"
        yield f"  repeat with: {violation.command}"


# --- the command ----------------------------------------------------------------------------------------------------

KINDS: Mapping[str, str] = {
    "log": "chaos.search.power_loss_logs:PlainLog",
    "producers": "chaos.search.power_loss_logs:ProducersOfALog",
    "transactions": "chaos.search.power_loss_logs:TransactionsOfALog",
    "compaction": "chaos.search.power_loss_logs:CompactedLog",
    "tier": "chaos.search.power_loss_logs:TieredLog",
    "quorum": "chaos.search.power_loss_quorums:QuorumVoter",
    "groups": "chaos.search.power_loss_nodes:GroupsOfANode",
    "snapshots": "chaos.search.power_loss_quorums:MetadataSnapshots",
}
"""The script of each kind."""


def kind_of(name: str) -> type[Script]:
    """Return the script of a kind. Raise KeyError."""
    module, _, attribute = KINDS[name].partition(":")
    kind: type[Script] = getattr(import_module(module), attribute)
    return kind


@dataclass(frozen=True, slots=True)
class PowerLossOptions:
    """Options of ``crucible power-losses``. No names are all kinds."""

    names: Sequence[str]
    point: int | None = None
    outcome: str | None = None
    deep: bool = False
    mutant: str | None = None
    with_mutants: bool = False


def power_losses_command(options: PowerLossOptions) -> int:
    """Search each kind, print the results, and return the exit code: 0, 1 (a violation, or with ``with_mutants`` a
    mutant that survives), or 2."""
    unknown = [name for name in options.names if name not in KINDS]
    if unknown:
        click.echo(f"crucible power-losses: there is no kind {unknown[0]!r}; there are: {', '.join(KINDS)}", err=True)
        return 2
    red = False
    try:
        for name in options.names or KINDS:
            red |= _search_and_report(name, options, options.mutant) is not None
            for mutant in KILLED_BY[name] if options.with_mutants else ():
                survives = _search_and_report(name, options, mutant.name) is None
                click.echo(f"{name}: {mutant.name} {'SURVIVED' if survives else 'killed'}")
                red |= survives
    except MutantError as error:
        click.echo(f"crucible power-losses: {error}", err=True)
        return 2
    return int(red)


def _search_and_report(name: str, options: PowerLossOptions, mutant: str | None) -> LossViolation | None:
    outcomes = (options.outcome,) if options.outcome else OUTCOMES
    with applied(found_mutant(mutant) if mutant else None):
        result = search_violation(kind_of(name), outcomes, options.point, options.deep, mutant or "")
    for line in report(result):
        click.echo(line)
    return result.violation
