"""``crucible upgrade-path``, and its page docs/evidence/upgrade-path.md.

The page shows the same old directory on Apache Kafka and on the reference broker.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from platform import machine, system

from campaigns.upgrade import ablation, old_directory, taking_over
from campaigns.upgrade.ablation import MIB, AblationCase
from campaigns.upgrade.journey import Upgrade
from campaigns.upgrade.kafka import KAFKA_AFTER, KAFKA_BEFORE, LIFE_HEADINGS, Watched, watched, written_by_kafka
from campaigns.upgrade.kafka_files import UpgradeError
from campaigns.upgrade.taking_over import OldDirectory, OldPartition
from campaigns.upgrade.verdict import HEADINGS, PartitionVerdict, compute_verdict

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class UpgradeRequest:
    """The options of the command."""

    directory: Path | None
    """None: one is made by hand."""
    out: Path | None
    """None: all is deleted at the end."""
    topics: Sequence[str]
    """None: all but internal ones."""
    settings: Mapping[str, str]
    limit_s: float
    with_kafka: bool = False
    """Apache Kafka 2.7.2 writes the directory, and Apache Kafka 4.1.1 gets it, too."""


@dataclass(frozen=True, slots=True)
class UpgradeResult:
    """The outcome of an upgrade."""

    old: OldDirectory
    """What was there before."""
    verdicts: Sequence[PartitionVerdict]
    lives: Sequence[Watched]
    """Runs of Apache Kafka with the same directory, if requested."""

    @property
    def is_good(self) -> bool:
        return all(verdict.is_good for verdict in self.verdicts)


def run(request: UpgradeRequest, say: Say) -> UpgradeResult:
    """Raise UpgradeError and PeerError."""
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


def _run(request: UpgradeRequest, out: Path, say: Say) -> UpgradeResult:
    old = taking_over.read(_source(request, out, say), request.topics)
    upgrade = Upgrade(old, out / "data", out / "tier", request.settings, request.limit_s, say)
    replays = upgrade.replayed()
    verdicts = [compute_verdict(each) for each in upgrade.run(replays)]
    lives = watched(old, replays, out / "kafka", say) if request.with_kafka else []
    return UpgradeResult(old, verdicts, lives)


def _source(request: UpgradeRequest, out: Path, say: Say) -> Path:
    """The old directory, which is made if none was given."""
    if request.directory is not None:
        return request.directory
    if request.with_kafka:
        return written_by_kafka(out / "old", say)
    say("a log directory from before snapshots of producers is made by hand")
    old_directory.make(out / "old", old_directory.WantedLog(), time.time_ns() // 1_000_000)
    return out / "old"


def ablated(say: Say) -> dict[str, list[AblationCase]]:
    """Measure each way on each log."""
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


def ablation_rows(found: Mapping[str, Sequence[AblationCase]]) -> list[tuple[str, ...]]:
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


_PAGE = """# The upgrade path of KAFKA-15195

A broker before 2.8 keeps snapshots of producers only for its newest segments. A broker on which such a log becomes
tiered needs one for each segment that is uploaded. Here {before} wrote a log directory, with its ZooKeeper and stock
producers of librdkafka. The same directory was given to {after} with LocalTieredStorage, and to the reference broker.

Seen on {date}, {machine}. One command shows it again and writes this page:

```
./crucible upgrade-path --kafka --page docs/evidence/upgrade-path.md
```

## What {before} left

{old}

`meta.properties` has version 0, and no partition has a `partition.metadata`: there are no topic IDs yet.

## On {after}

{lives}

{why}

## On the reference broker

{ours}

Each snapshot in the store was compared with a full replay of the files of {before}, by code that shares nothing with
the broker (`campaigns/upgrade/full_replay.py`): all producers that are unexpired at the time of the upload, and all
open transactions, field by field. Each segment in the store was compared with its old file, byte by byte.

## How the directory was taken over

Both brokers got it in the same way. The new broker makes the topics, and so their IDs, and stops cleanly. The files of
the partitions are copied to its folder, beside a `partition.metadata` with the new ID. Then it starts again, and
`remote.storage.enable` is set. Its `meta.properties` is its own. Apache Kafka's checkpoints of recovery points and high
watermarks get the ends of the logs, as they would be after a clean stop of a broker that had these logs all along.

## What this does not mean

A cluster that was upgraded step by step has written snapshots at each roll since 2.8, and deletes old segments by its
retention. It gets stuck only while segments from before that are there. The effect of retention meanwhile was not
measured.
"""


def written(outcome: UpgradeResult) -> str:
    """Return the page."""
    return _PAGE.format(
        before=KAFKA_BEFORE,
        after=KAFKA_AFTER,
        date=datetime.now(UTC).date(),
        machine=f"{os.cpu_count()} cores, {system()} {machine()}",
        old="\n\n".join(_old(partition) for partition in outcome.old.partitions),
        lives=_table(LIFE_HEADINGS, [each.cells() for each in outcome.lives]),
        why=_why(outcome),
        ours=_table(HEADINGS, [verdict.cells() for verdict in outcome.verdicts]),
    )


def _old(partition: OldPartition) -> str:
    ends = partition.bases[1:]
    there = [f"`{offset:020d}.snapshot`" for offset in sorted(partition.snapshots)]
    return (
        f"`{partition.name}` has {len(partition.bases)} segments and {len(there)} snapshots: {', '.join(there)}. "
        f"Of the {len(ends)} closed segments {len(set(ends) - partition.snapshots)} lack the one at their end."
    )


def _why(outcome: UpgradeResult) -> str:
    failed = [each for each in outcome.lives if each.message]
    if not failed:
        return "No copy failed for want of a snapshot."
    last = failed[-1]
    stuck = "The upload is retried without end" if last.is_stuck else "The upload failed for a while"
    return f"{stuck}, each time with `{last.message}`, thrown at `{last.place}`."


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
