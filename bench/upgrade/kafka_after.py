"""Gives an old directory to Apache Kafka 4.1.1 with LocalTieredStorage, makes its topics tiered, and looks what comes.

The steps are those that are taken with the reference broker: Kafka makes the topics and their IDs, stops cleanly, gets
the files of their partitions, and starts again. Its checkpoints are told where the logs end, as a clean stop would.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers.cluster import Cluster, target_cluster, until
from bench.peers.systems import BOTH
from bench.targets.loader import find
from bench.upgrade import client
from bench.upgrade.full_replay import Told
from bench.upgrade.journey import eligible_segments
from bench.upgrade.kafka_before import stop_cleanly
from bench.upgrade.kafka_files import checkpoint, checkpoint_rows
from bench.upgrade.taking_over import LOG_START, OldDirectory, put

VERSION_AFTER = "4.1.1"
KAFKA_AFTER = f"Apache Kafka {VERSION_AFTER}"
SETTINGS = {
    **BOTH,
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.manager.task.retry.backoff.ms": "500",
    "remote.log.manager.task.retry.backoff.max.ms": "1000",
}
ENDS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
LOG = "node-0/log.txt"
WATCHED_S = 30.0
START_LIMIT_S = 120.0
TIER_READY = "Initialized topic-based RLMM resources successfully"
LOOK_EVERY_S = 0.5
_FAILURE = re.compile(r"NullPointerException: [^\n]*producerStateSnapshotFile[^\n]*")
_PLACE = re.compile(r"at (\S*RLMCopyTask\.copyLogSegment\([^)]*\))")


@dataclass(frozen=True, slots=True)
class Watched:
    """One life of Kafka with tiered topics. ``listed`` is how many eligible segments it said were in the tier at the
    end, of ``eligible``. ``stored`` is the number of objects in the tier's folder. ``failures`` of the copy were
    logged, ``last_failures`` of them in the second half of the time. ``message`` and ``place`` are of the last one."""

    how: str
    watched_s: float
    eligible: int
    listed: int
    stored: int
    failures: int
    last_failures: int
    message: str
    place: str

    @property
    def is_stuck(self) -> bool:
        """Segments were left, and it still failed in the second half of the time."""
        return self.listed < self.eligible and self.last_failures > 0

    def cells(self) -> tuple[str, ...]:
        """As ``LIFE_HEADINGS`` name them."""
        return (
            f"{KAFKA_AFTER}, {self.how}",
            f"{self.watched_s:.0f} s",
            f"{self.listed} of {self.eligible}",
            str(self.stored),
            f"{self.failures} ({self.last_failures} in the second half)",
            "yes" if self.is_stuck else "no",
        )


LIFE_HEADINGS = ("broker", "watched", "eligible segments listed", "objects in the tier", "failed copies", "stuck")


def watched(
    old: OldDirectory,
    told: Mapping[str, Sequence[Told]],
    folder: Path,
    say: Callable[[str], None],
    limit_s: float = WATCHED_S,
) -> list[Watched]:
    """Two lives: the first in which the topics are tiered, and one after a clean restart. Raises PeerError and
    UpgradeError."""
    ends = {
        (each.topic, each.index): [one.next_offset for one in eligible_segments(told[each.name])]
        for each in old.partitions
    }
    say(f"{KAFKA_AFTER} starts, and makes the topics and their IDs")
    with _prepared(folder) as cluster:
        (node,) = cluster.members
        with _life(cluster, folder / LOG, {}):
            client.create_topics(node.port, old.topics)
        _put(old, told, folder / "node-0" / "data")
        lives: list[Watched] = []
        for how in ("made tiered", "after a clean restart"):
            with _life(cluster, folder / LOG, old.topics):
                if not lives:
                    client.make_tiered(node.port, list(old.topics))
                say(f"{KAFKA_AFTER}, {how}: watched for up to {limit_s:g} s")
                lives.append(_watch(how, node.port, ends, folder, limit_s))
    return lives


@contextmanager
def _prepared(folder: Path) -> Iterator[Cluster]:
    chosen = replace(find(f"kafka@{VERSION_AFTER}"), nodes=1)
    with target_cluster(chosen, folder, SETTINGS) as cluster:
        yield cluster


@contextmanager
def _life(cluster: Cluster, log: Path, topics: Mapping[str, int]) -> Iterator[None]:
    """From a start to a clean stop. Waits until the partitions of the topics have leaders, and until the remote tier is
    ready: Kafka does not end before that. Raises PeerError."""
    (node,) = cluster.members
    before = _count(log, TIER_READY)
    cluster.launch()
    cluster.await_ready()
    until(lambda: _count(log, TIER_READY) > before, START_LIMIT_S, f"The remote tier of {KAFKA_AFTER}")
    if topics:
        until(lambda: client.are_led(node.port, topics), START_LIMIT_S, f"A leader for each partition on {KAFKA_AFTER}")
    yield
    stop_cleanly(node)


def _count(log: Path, words: str) -> int:
    return log.read_text(errors="replace").count(words) if log.exists() else 0


def _put(old: OldDirectory, told: Mapping[str, Sequence[Told]], data: Path) -> None:
    """Kafka's ``partition.metadata`` stays, with the topic's ID. Raises UpgradeError."""
    for each in old.partitions:
        put(each, data / each.name)
    rows = {f"{each.topic} {each.index}": told[each.name][-1].next_offset for each in old.partitions}
    for name in ENDS:
        _tell(data / name, rows)
    _tell(data / LOG_START, {f"{each.topic} {each.index}": each.log_start for each in old.partitions if each.log_start})


def _tell(path: Path, offsets: Mapping[str, int]) -> None:
    others = [" ".join(row) for row in checkpoint_rows(path) if " ".join(row[:2]) not in offsets]
    path.write_text(checkpoint([*others, *(f"{name} {offset}" for name, offset in offsets.items())]))


def _watch(how: str, port: int, ends: Mapping[tuple[str, int], Sequence[int]], folder: Path, limit_s: float) -> Watched:
    """Looks until all is listed, or time is up."""
    log, total = folder / LOG, sum(map(len, ends.values()))
    before, began, halfway, listed = len(_failures(log)), time.monotonic(), 0, 0
    while listed < total and time.monotonic() < began + limit_s:
        offsets = client.tiered_offsets(port, list(ends))
        listed = sum(end - 1 <= offsets.get(name, -1) for name, each in ends.items() for end in each)
        if time.monotonic() < began + limit_s / 2:
            halfway = len(_failures(log)) - before
        time.sleep(LOOK_EVERY_S)
    found = _failures(log)
    places = _PLACE.findall(log.read_text(errors="replace"))
    return Watched(
        how,
        time.monotonic() - began,
        total,
        listed,
        sum(path.is_file() for path in (folder / "tier").rglob("*")),
        len(found) - before,
        len(found) - before - halfway,
        found[-1] if found else "",
        places[-1] if places else "",
    )


def _failures(log: Path) -> list[str]:
    return _FAILURE.findall(log.read_text(errors="replace"))
