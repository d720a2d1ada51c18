"""Parts of nodes with simulated disks: a metadata log, its snapshots, and a link on which the test is the network."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from chaos.sim.disk import SimDisk
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.loader import MetadataLoader, decoded
from reference_broker.metadata.records import ConfigRecord, MetadataRecord, encode
from reference_broker.metadata.snapshots import (
    SnapshotGenerator,
    SnapshotMetrics,
    load_snapshot,
    snapshot_id,
    write_snapshot,
)
from reference_broker.metadata.tests.metadata_world import topic_id, topic_records
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import Buffer
from reference_broker.ports.node_ports import NodeContext, Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.metadata_log import MetadataLog, open_metadata_log
from reference_broker.quorum.snapshots.download import SnapshotDownload
from reference_broker.quorum.snapshots.format import made_path
from reference_broker.quorum.snapshots.messages import (
    DRAFT_VERSION,
    draft_response_of,
    read_requests,
    response_of,
)
from reference_broker.quorum.snapshots.serving import serve
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.values import DownloadOutcome, OffsetAndEpoch, Provenance
from reference_broker.wire.errors import Error, ErrorCode

WALL_MS = 1_700_000_000_000
DIRECTORY = "__cluster_metadata-0"


class Crash(Exception):  # noqa: N818 - what happens
    """The process dies before a disk operation."""


class CrashingDisk(SimDisk):
    """A disk that dies before change number ``crash_at`` (counted from 0; -1: never)."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.crash_at = -1
        self.changes = 0

    def durable_size(self, path: str) -> int:
        """Return the number of bytes that survive a power loss in any case."""
        return self._file(path).durable

    def flip(self, path: str, byte: int) -> None:
        """Flip one bit of a file."""
        self._file(path).content[byte] ^= 1

    def _change(self) -> None:
        if self.changes == self.crash_at:
            raise Crash
        self.changes += 1

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._change()
        return super().append(path, buffers)

    def truncate(self, path: str, size: int) -> None:
        self._change()
        super().truncate(path, size)

    def write(self, path: str, data: Buffer) -> None:
        self._change()
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)


@dataclass
class Ports:
    """Timers and syncs in the order of their time. Requests wait for the test in ``sent``."""

    disk: CrashingDisk
    now_us: int = 5_000_000
    timers: dict[int, tuple[int, Callable[[], None]]] = field(default_factory=dict)
    notes: list[tuple[str, dict[str, int | str]]] = field(default_factory=list)
    sent: list[tuple[Any, int, Callable[[object], None], Callable[[], None]]] = field(default_factory=list)
    """(request, version, replied, failed)."""
    last: int = 0

    def now(self) -> Now:
        return Now(self.now_us, WALL_MS + self.now_us // 1000)

    def at_end(self, step: Callable[[], None]) -> None:
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        self.last += 1
        self.timers[self.last] = (deadline_us, fire)
        return self.last

    def cancel_timer(self, timer: int) -> None:
        self.timers.pop(timer, None)

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        sync = self.disk.begin_sync(paths)

        def finish() -> None:
            self.disk.finish_sync(sync)
            done()

        self.set_timer(self.now_us, finish)

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self.notes.append((what, dict(fields)))

    def send(
        self,
        peer: int,
        channel: int,
        key: int,
        version: int,
        body: object,
        timeout_ms: int,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        assert (key, timeout_ms > 0) == (59, True), (peer, channel, key)
        self.sent.append((body, version, replied, failed))

    def step(self) -> bool:
        """Run the earliest due event. Return False if there is none."""
        due = [(deadline, number) for number, (deadline, _) in self.timers.items() if deadline <= self.now_us]
        if not due:
            return False
        self.timers.pop(min(due)[1])[1]()
        return True

    def run(self) -> None:
        while self.step():
            pass

    def advance(self, milliseconds: int) -> None:
        end_us = self.now_us + milliseconds * 1000
        self.run()
        while self.timers and min(deadline for deadline, _ in self.timers.values()) <= end_us:
            self.now_us = max(self.now_us, min(deadline for deadline, _ in self.timers.values()))
            self.run()
        self.now_us = end_us

    def notes_of(self, what: str) -> list[dict[str, int | str]]:
        return [fields for name, fields in self.notes if name == what]


class Replica:
    """One node's log and snapshots, read as a loader does, without transactions. Everything appended is committed."""

    def __init__(self, disk: CrashingDisk | None = None, node_id: int = 1, **config: str) -> None:
        self.disk = disk if disk is not None else CrashingDisk(Random(0))
        self.ports = Ports(self.disk)
        self.config = BrokerConfig.parse({key.replace("_", "."): value for key, value in config.items()})
        self.metrics = Metrics()
        self.store = SnapshotStore(self.disk)
        self.log: MetadataLog = run_to_end(
            open_metadata_log(self.disk, self.config, self.ports.now(), False, self.store)
        )
        self.node = node = NodeContext(node_id, self.disk, self.ports, Random(0))
        snapshot_metrics = SnapshotMetrics(self.ports, self.store, self.metrics)
        self.loader = MetadataLoader(node, self.log, self.store)
        self.loader.on_loaded = snapshot_metrics.loaded
        self.generator = SnapshotGenerator(node, self.config, self.store, self.log, snapshot_metrics)
        self.download = SnapshotDownload(node, self.config, "c", self.store, self.log)
        self.image = EMPTY_IMAGE
        self.epoch = 1
        self.load()

    def load(self) -> None:
        """Load the newest snapshot, then the log behind it."""
        self.image = EMPTY_IMAGE
        latest = self.store.latest
        if latest is not None:
            self.image = run_to_end(load_snapshot(self.disk, latest))
        self.log.log.advance_high_watermark(self.log.end.offset)
        offset = self.image.provenance.offset + 1
        while offset < self.log.end.offset:
            for batch in self.log.batches(offset, self.log.end.offset):
                self.image = replayed(self.image, decoded(batch).records, batch.provenance)
                offset = batch.provenance.offset + 1

    def append(self, records: Sequence[MetadataRecord]) -> None:
        before = self.log.log.size_bytes
        provenance = self.log.append(self.ports.now(), [encode(each) for each in records], self.epoch)
        self.log.log.advance_high_watermark(self.log.end.offset)
        self.image = replayed(self.image, records, provenance)
        self.generator.published(self.image, self.log.log.size_bytes - before)

    def sync(self) -> None:
        point = self.log.log.sync_point()
        self.ports.sync(point.paths, lambda: self.log.log.mark_synced(point))
        self.ports.run()

    def make_snapshot(self) -> OffsetAndEpoch:
        """Make a snapshot of the present content, at once."""
        made = snapshot_id(self.image)
        for _ in write_snapshot(self.disk, self.image):
            pass
        self.disk.make_durable(made_path(made))
        self.disk.make_durable(self.store.name(made, made_path(made)))
        self.store.add(made)
        return made

    def bytes_of(self, snapshot: OffsetAndEpoch) -> bytes:
        return self.store.read(snapshot, 0, self.store.size(snapshot))

    def names(self) -> list[str]:
        """Return the names of all files of snapshots."""
        return [name for name in self.disk.list(DIRECTORY) if "checkpoint" in name and name[0].isdigit()]


@dataclass
class Leadership:
    """The leadership of the serving node."""

    leader_id: int = 1
    epoch: int = 1
    cluster_id: str = "c"
    error: Error | None = None
    contacts: list[int] = field(default_factory=list)

    def validate_leader_only_request(self, cluster_id: str | None, leader_epoch: int) -> Error | None:
        if cluster_id is not None and cluster_id != self.cluster_id:
            return ErrorCode.inconsistent_cluster_id
        if leader_epoch != self.epoch:
            return ErrorCode.fenced_leader_epoch if leader_epoch < self.epoch else ErrorCode.unknown_leader_epoch
        return self.error

    def note_contact(self, replica_id: int) -> None:
        self.contacts.append(replica_id)


class Transfer:
    """A follower fetches from a leader. The test delivers, loses or changes responses.

    ``bytes_sent``: by the leader, including lost responses.
    """

    def __init__(self, leader: Replica, follower: Replica, leader_id: int = 1) -> None:
        self.leader = leader
        self.follower = follower
        self.leadership = Leadership(leader_id=leader_id)
        self.outcomes: list[DownloadOutcome] = []
        self.progress = 0
        self.bytes_sent = 0

    def begin(self, snapshot: OffsetAndEpoch) -> None:
        self.follower.download.begin(
            self.leadership.leader_id, self.leadership.epoch, snapshot, self._progressed, self.outcomes.append
        )
        self.follower.ports.run()

    def _progressed(self) -> None:
        self.progress += 1

    def response(self) -> Any:
        """Return the leader's response to the oldest request, which stays pending."""
        body, version, _, _ = self.follower.ports.sent[0]
        (request,) = read_requests(body)
        is_draft = version == DRAFT_VERSION
        piece = serve(request, self.leader.store, self.leadership, self.leader.ports.now_us, is_draft)
        self.bytes_sent += len(piece.data)
        if is_draft:
            return draft_response_of([(request, piece)])
        return response_of([(request, piece)], None)

    def deliver(self, body: object | None = None) -> None:
        """Deliver the response, or another body."""
        delivered = self.response() if body is None else body
        self.follower.ports.sent.pop(0)[2](delivered)
        self.follower.ports.run()

    def lose(self) -> None:
        """Lose the response after it was sent."""
        self.response()
        self.fail()

    def fail(self) -> None:
        self.follower.ports.sent.pop(0)[3]()
        self.follower.ports.run()

    def finish(self) -> None:
        while self.follower.ports.sent:
            self.deliver()


def replayed(image: MetadataImage, records: Sequence[MetadataRecord], provenance: Provenance) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        replay(delta, record)
    return delta.build(provenance)


def filled(replica: Replica, topics: int = 5, partitions: int = 20) -> Replica:
    for number in range(topics):
        replica.append(topic_records(f"t{number}", topic_id(number), partitions))
    return replica


def setting(number: int, value: str = "v") -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name=f"t{number}", name="retention.ms", value=value)


def flips(data: bytes, step: int = 1) -> Iterator[bytes]:
    """Yield copies with one bit flipped, at each ``step``-th byte."""
    for index in range(0, len(data), step):
        changed = bytearray(data)
        changed[index] ^= 1
        yield bytes(changed)


def content(image: MetadataImage) -> tuple[Any, ...]:
    """Return a value that is equal for equal metadata as of the same record, however it was reached."""
    return (
        image.provenance.offset,
        image.provenance.epoch,
        dict(image.features),
        dict(image.brokers),
        dict(image.topics),
        dict(image.topic_names),
        {key: dict(value) for key, value in image.configs.items()},
        image.next_producer_id,
        image.metadata_epoch,
    )
