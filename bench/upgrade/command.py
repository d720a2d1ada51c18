"""``crucible upgrade-path``."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.upgrade import ablation, kafka_after, kafka_before, old_directory, taking_over
from bench.upgrade.ablation import MIB, Case
from bench.upgrade.journey import Upgrade
from bench.upgrade.judging import Verdict, judge
from bench.upgrade.kafka_after import Watched
from bench.upgrade.kafka_files import UpgradeError
from bench.upgrade.taking_over import OldDirectory

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """``directory`` None: one is made by hand. ``out`` None: all is deleted at the end. No ``topics`` stand for all but
    internal ones."""

    directory: Path | None
    out: Path | None
    topics: Sequence[str]
    settings: Mapping[str, str]
    limit_s: float
    with_kafka: bool = False
    """Apache Kafka 2.7.2 writes the directory, and Apache Kafka 4.1.1 gets it, too."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an upgrade. ``old`` has what was there before. ``lives`` are those of Apache Kafka with the same
    directory, if it was asked for."""

    old: OldDirectory
    verdicts: Sequence[Verdict]
    lives: Sequence[Watched]

    @property
    def is_good(self) -> bool:
        return all(each.is_good for each in self.verdicts)


def run(request: Request, say: Say) -> Outcome:
    """Raises UpgradeError and PeerError."""
    if request.directory is not None and request.with_kafka:
        raise UpgradeError("Give a directory, or let Kafka write one with --kafka, not both.")
    if request.directory is not None and request.out is None:
        raise UpgradeError("Say with --out where the new data folder and the tier are to be.")
    if request.out is not None:
        _make_empty(request.out)
        return _run(request, request.out.absolute(), say)
    with tempfile.TemporaryDirectory(prefix="crucible-upgrade-") as folder:
        return _run(request, Path(folder), say)


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UpgradeError(f"{folder} is not empty: give another folder.")
    except OSError as failure:
        raise UpgradeError(f"{folder} cannot be used: {failure.strerror}.") from failure


def _run(request: Request, out: Path, say: Say) -> Outcome:
    old = taking_over.read(_source(request, out, say), request.topics)
    upgrade = Upgrade(old, out / "data", out / "tier", request.settings, request.limit_s, say)
    told = upgrade.replayed()
    verdicts = [judge(each) for each in upgrade.run(told)]
    lives = kafka_after.watched(old, told, out / "kafka", say) if request.with_kafka else []
    return Outcome(old, verdicts, lives)


def _source(request: Request, out: Path, say: Say) -> Path:
    """The old directory, which is made if none was given."""
    if request.directory is not None:
        return request.directory
    if request.with_kafka:
        return kafka_before.written(out / "old", say)
    say("a log directory from before snapshots of producers is made by hand")
    old_directory.make(out / "old", old_directory.Wanted(), time.time_ns() // 1_000_000)
    return out / "old"


def ablated(say: Say) -> dict[str, list[Case]]:
    """Measures each way on each log."""
    wanted, now_ms, found = ablation.cases(), time.time_ns() // 1_000_000, {}
    for each in dict.fromkeys(each for several in wanted.values() for each in several):
        say(
            f"{each.size_bytes // MIB} MiB, {each.hours:g} h, expiration {each.expiration_hours:g} h, "
            f"{each.producers_per_hour:g} new producers per hour"
        )
        with tempfile.TemporaryDirectory(prefix="crucible-upgrade-") as folder:
            found[each] = ablation.measured(each, Path(folder), now_ms)
    return {name: [found[each] for each in several] for name, several in wanted.items()}


ABLATION_HEADINGS = (
    "log",
    "expiration",
    "producers",
    "way",
    "one snapshot",
    "lacks, wrong",
    "all in turn",
    "lack, wrong",
    "unequal",
)


def ablation_rows(found: Mapping[str, Sequence[Case]]) -> list[tuple[str, ...]]:
    """A row for each way on each log, with no log twice."""
    cases = {case.wanted: case for each in found.values() for case in each}
    return [
        (
            f"{case.log_bytes / MIB:.0f} MiB",
            f"{wanted.expiration_hours:g} h",
            f"{wanted.producers_per_hour:g} an hour, {case.known} known",
            way,
            f"{each.read_bytes / MIB:.1f} MiB, {each.took_s:.3f} s",
            f"{each.missing}, {each.wrong}",
            f"{each.all_bytes / MIB:.1f} MiB, {each.all_s:.3f} s",
            f"{each.all_missing}, {each.all_wrong}",
            f"{each.all_unequal} of {case.segments - 1}",
        )
        for wanted, case in cases.items()
        for way, each in case.figures.items()
    ]
