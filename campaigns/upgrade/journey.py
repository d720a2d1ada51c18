"""The upgrade on the reference broker: its topics become tiered, and all is uploaded."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.node import BrokerNode, end
from bench.peers.reference import ReferenceNode
from bench.ports import free_ports
from campaigns.upgrade import client
from campaigns.upgrade.full_replay import ReplayedSegment, replayed, stable_end
from campaigns.upgrade.kafka_files import UnknownFormat, UpgradeError, whole_snapshots
from campaigns.upgrade.taking_over import OldDirectory, OldPartition, bind
from reference_broker.metadata.identifiers import uuid_text

STARTED_LIMIT_S = 60.0
POLL_INTERVAL_S = 0.2
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
}
EXPIRATION = "producer.id.expiration.ms"
DAY_MS = 86_400_000
RECREATED = "producer_snapshot_recreated"


@dataclass(frozen=True, slots=True)
class Recreated:
    """The broker's log line for one snapshot that it made: where the replay began, how much it read, and its time."""

    from_offset: int
    read_bytes: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Journey:
    """One partition after its upload."""

    old: OldPartition
    replay: Sequence[ReplayedSegment]
    """The full replay of the old files."""
    eligible: Sequence[ReplayedSegment]
    """Closed segments below the earliest open transaction."""
    there: frozenset[int]
    """Offsets of the complete snapshots with which the broker began."""
    uploads: Path
    """The folder of the partition's objects."""
    recreated: Mapping[int, Recreated]
    """The snapshots that the broker recreated, by offset."""
    epochs_changed: bool
    expiration_ms: int
    began_ms: int
    """Start of the broker."""
    ended_ms: int
    """When the last upload was listed."""


def eligible_segments(replay: Sequence[ReplayedSegment]) -> list[ReplayedSegment]:
    """Return the segments that may be uploaded: closed, and with nothing undecided in them or before them."""
    return [segment for segment in replay[:-1] if segment.next_offset <= stable_end(replay)]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The place and the time limit of the upgrade."""

    old: OldDirectory
    data: Path
    """Becomes the broker's folder."""
    tier: Path
    """The broker's store."""
    settings: Mapping[str, str]
    """Of the broker, by Kafka's names."""
    limit_s: float
    say: Callable[[str], None]

    def replayed(self) -> dict[str, list[ReplayedSegment]]:
        """The full replay of each partition's old files. Raise UpgradeError, also if nothing may be uploaded."""
        replays = {partition.name: _replayed(partition) for partition in self.old.partitions}
        if not any(map(eligible_segments, replays.values())):
            raise UpgradeError(
                f"{self.old.path} has no closed segment that ends before the first open transaction, so nothing would "
                "be uploaded."
            )
        self.say(f"{sum(map(len, replays.values()))} segments replayed in full, for the comparison")
        return replays

    def run(self, replays: Mapping[str, Sequence[ReplayedSegment]]) -> list[Journey]:
        """Raise UpgradeError and PeerError."""
        began_ms = _now_ms()
        self.say("the reference broker makes the topics and their IDs")
        with self._broker() as port:
            ids = client.create_topics(port, self.old.topics)
        changed = {
            partition.name: bind(partition, self.data / partition.name, ids[partition.topic])
            for partition in self.old.partitions
        }
        os.sync()  # A start after a clean stop trusts the files.
        with self._broker() as port:
            self._await_start(port, replays)
            there = {partition.name: self._whole_snapshots(partition) for partition in self.old.partitions}
            client.make_tiered(port, list(self.old.topics))
            self.say("the topics are tiered now; each closed segment is uploaded")
            self._await_uploads(port, replays)
            ended_ms = _now_ms()
        recreated = self._recreated()
        expiration_ms = int(self.settings.get(EXPIRATION, DAY_MS))
        return [
            Journey(
                partition,
                replays[partition.name],
                eligible_segments(replays[partition.name]),
                there[partition.name],
                self.tier / f"{partition.name}-{uuid_text(ids[partition.topic])}",
                recreated.get(partition.name, {}),
                changed[partition.name],
                expiration_ms,
                began_ms,
                ended_ms,
            )
            for partition in self.old.partitions
        ]

    @contextmanager
    def _broker(self) -> Iterator[int]:
        """A node of our own until the block ends. It stops cleanly. Yields its port."""
        (port,) = free_ports(1)
        cluster = {"crucible.cluster.id": self.old.cluster_id} if self.old.cluster_id else {}
        settings = {**SETTINGS, "crucible.remote.store.url": str(self.tier), **cluster, **self.settings}
        node = ReferenceNode(self.old.broker_id, port, self.data, settings)
        try:
            node.launch()
            node.await_ready()
            yield port
            _stop_cleanly(node)
        finally:
            end([node])

    def _await_start(self, port: int, replays: Mapping[str, Sequence[ReplayedSegment]]) -> None:
        names = [(partition.topic, partition.index) for partition in self.old.partitions]
        _until(lambda: client.are_led(port, self.old.topics), STARTED_LIMIT_S, "a leader for each partition")
        ends = client.end_offsets(port, names)
        for partition in self.old.partitions:
            wanted, found = replays[partition.name][-1].next_offset, ends.get((partition.topic, partition.index), -1)
            if found != wanted:
                raise UpgradeError(f"{partition.name} ends at offset {wanted}, but the broker made {found} of it.")

    def _whole_snapshots(self, partition: OldPartition) -> frozenset[int]:
        return whole_snapshots(self.data / partition.name)

    def _await_uploads(self, port: int, replays: Mapping[str, Sequence[ReplayedSegment]]) -> None:
        """Return when the last eligible segment of each partition is listed, or at the time limit: the verdict
        says what is missing."""
        wanted = {
            (partition.topic, partition.index): [one.next_offset for one in eligible_segments(replays[partition.name])]
            for partition in self.old.partitions
        }
        total, deadline, last = sum(map(len, wanted.values())), time.monotonic() + self.limit_s, -1
        while time.monotonic() < deadline:
            listed = client.tiered_offsets(port, list(wanted))
            done = sum(end - 1 <= listed.get(name, -1) for name, ends in wanted.items() for end in ends)
            if done != last:
                self.say(f"{done} of {total} eligible segments are listed in the tier")
                last = done
            if done == total:
                return
            time.sleep(POLL_INTERVAL_S)

    def _recreated(self) -> dict[str, dict[int, Recreated]]:
        """The snapshots that the broker logged as recreated, by partition and offset."""
        found: dict[str, dict[int, Recreated]] = {}
        for line in self.data.with_name(f"{self.data.name}.log").read_text(errors="replace").splitlines():
            if RECREATED in line:
                row = json.loads(line)
                made = Recreated(row["from_offset"], row["read_bytes"], row["now_ms"])
                found.setdefault(row["partition"], {})[row["offset"]] = made
        return found


def _replayed(partition: OldPartition) -> list[ReplayedSegment]:
    try:
        return replayed(partition.folder)
    except (UnknownFormat, OSError) as wrong:
        raise UpgradeError(f"{partition.folder} cannot be read: {wrong}") from wrong


def _stop_cleanly(node: BrokerNode) -> None:
    """The start that follows trusts the files then."""
    end([node])
    assert node.process is not None, "it ran"
    if node.process.returncode:
        raise UpgradeError(f"The reference broker ended with status {node.process.returncode} when it was to stop.")


def _until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise UpgradeError(f"There was no sign of {what} within {limit_s:g} s.")
        time.sleep(POLL_INTERVAL_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
