"""Writes docs/evidence/upgrade-path.md: the same old directory on Apache Kafka and on the reference broker."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from platform import machine, system

from bench.upgrade import kafka_after, kafka_before
from bench.upgrade.command import Outcome
from bench.upgrade.judging import HEADINGS
from bench.upgrade.kafka_after import LIFE_HEADINGS
from bench.upgrade.taking_over import OldPartition

_PAGE = """# The upgrade path of KAFKA-15195

A broker before 2.8 keeps snapshots of producers only for its newest segments. Whoever makes such a log tiered needs one
for each segment that is uploaded. Here {before} wrote a log directory, with its ZooKeeper and stock producers of
librdkafka. The same directory was given to {after} with LocalTieredStorage, and to the reference broker.

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
the broker (`bench/upgrade/full_replay.py`): all producers that are unexpired at the time of the upload, and all open
transactions, field by field. Each segment in the store was compared with its old file, byte by byte.

## How the directory was taken over

Both brokers got it in the same way. The new broker makes the topics, and so their IDs, and stops cleanly. The files of
the partitions are copied to its folder, beside a `partition.metadata` with the new ID. Then it starts again, and
`remote.storage.enable` is set. Its `meta.properties` is its own. Apache Kafka's checkpoints of recovery points and high
watermarks are told where the logs end, as they would be after a clean stop of a broker that had these logs all along.

## What this does not mean

A cluster that was upgraded step by step has written snapshots at each roll since 2.8, and deletes old segments by its
retention. It gets stuck only while segments from before that are there. What retention does meanwhile was not looked
at.
"""


def written(outcome: Outcome) -> str:
    """Returns the page."""
    return _PAGE.format(
        before=kafka_before.NAME,
        after=kafka_after.NAME,
        date=datetime.now(UTC).date(),
        machine=f"{os.cpu_count()} cores, {system()} {machine()}",
        old="\n\n".join(_old(each) for each in outcome.old.partitions),
        lives=_table(LIFE_HEADINGS, [each.cells() for each in outcome.lives]),
        why=_why(outcome),
        ours=_table(HEADINGS, [each.cells() for each in outcome.verdicts]),
    )


def _old(partition: OldPartition) -> str:
    ends = partition.bases[1:]
    there = [f"`{offset:020d}.snapshot`" for offset in sorted(partition.snapshots)]
    return (
        f"`{partition.name}` has {len(partition.bases)} segments and {len(there)} snapshots: {', '.join(there)}. "
        f"Of the {len(ends)} closed segments {len(set(ends) - partition.snapshots)} lack the one at their end."
    )


def _why(outcome: Outcome) -> str:
    failed = [each for each in outcome.lives if each.message]
    if not failed:
        return "No copy failed for want of a snapshot."
    last = failed[-1]
    stuck = "The upload is tried again without end" if last.is_stuck else "The upload failed for a while"
    return f"{stuck}, each time with `{last.message}`, thrown at `{last.place}`."


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
