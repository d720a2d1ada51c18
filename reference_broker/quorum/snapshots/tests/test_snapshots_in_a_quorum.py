"""Quorums whose nodes make, keep, send, fetch and load real snapshots, with kills, power losses, pauses and cuts."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.metadata.records import encode
from reference_broker.metadata.snapshots import SnapshotGenerator, SnapshotMetrics, load_snapshot
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import NodeContext
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.metadata_log import open_metadata_log
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.roles import Role
from reference_broker.quorum.snapshots.download import SnapshotDownload
from reference_broker.quorum.snapshots.messages import read_requests, response_of
from reference_broker.quorum.snapshots.serving import serve
from reference_broker.quorum.snapshots.store import SnapshotStore
from reference_broker.quorum.snapshots.tests.snapshot_world import content, setting
from reference_broker.quorum.tests.quorum_disk import LossyDisk
from reference_broker.quorum.tests.quorum_ports import SentRequest
from reference_broker.quorum.tests.quorum_storm import Storm
from reference_broker.quorum.tests.quorum_world import SECOND_US, Process, SimulatedQuorum
from reference_broker.quorum.values import NotLeader, OffsetAndEpoch
from reference_broker.wire.apis import ApiKey

SETTINGS = {
    "metadata_log_max_record_bytes_between_snapshots": "3000",
    "metadata_log_max_snapshot_interval_ms": "0",
    "metadata_max_retention_bytes": "0",
    "crucible_metadata_snapshot_keep_ms": "300",
    "crucible_metadata_snapshot_fetch_max_bytes": "300",
}


class Node(Process):
    """A process with its own snapshots. ``images``: those that it published, by offset."""

    world: "Nodes"
    snapshots: SnapshotStore  # type: ignore[assignment]  # Real ones, where the base class has names only.

    def __init__(self, world: "Nodes", node_id: int, config: BrokerConfig, disk: LossyDisk) -> None:
        self.world = world
        self.node_id = node_id
        self.disk = disk
        self.paused = False
        self.backlog: list[Callable[[], object]] = []
        self.timers: dict[int, bool] = {}
        self.notes: list[tuple[str, dict[str, int | str]]] = []
        self.snapshots = SnapshotStore(disk)
        self.log = run_to_end(open_metadata_log(disk, config, self.now(), False, self.snapshots))
        node = NodeContext(node_id, disk, self, Random(world.random.randrange(2**60)))
        self.download = SnapshotDownload(node, config, "cluster", self.snapshots, self.log)  # type: ignore[assignment]
        self.quorum = KafkaRaftClient(node, config, "cluster", self.log, self, self.download)
        self.loader = MetadataLoader(node, self.log, self.snapshots)
        metrics = SnapshotMetrics(self, self.snapshots, Metrics())
        self.generator = SnapshotGenerator(node, config, self.snapshots, self.log, metrics)
        self.loader.on_loaded = metrics.loaded
        self.loader.on_published = self.generator.published
        self.loader.subscribe(lambda _delta, image: world.published(image))
        run_to_end(self.loader.load())

    def serve(self, sent: SentRequest, respond: Callable[[object], None]) -> None:
        if sent.api_key != ApiKey.FETCH_SNAPSHOT:
            super().serve(sent, respond)
            return
        body: Any = sent.body
        (request,) = read_requests(body)
        piece = serve(request, self.snapshots, self.quorum, self.now().mono_us, False)
        respond(response_of([(request, piece)], None))

    def high_watermark_advanced(self, high_watermark: int) -> None:
        super().high_watermark_advanced(high_watermark)
        self.loader.catch_up(high_watermark)

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        super().snapshot_installed(snapshot)
        self.loader.reload(snapshot)

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        super().note(what, *fields)
        self.world.counts[what] = self.world.counts.get(what, 0) + 1
        if what == "snapshot_loaded":
            assert not self.quorum_leads(), "a leader never loads a snapshot"

    def quorum_leads(self) -> bool:
        return hasattr(self, "quorum") and self.quorum.role is Role.LEADER


class Nodes(SimulatedQuorum):
    """``images``: the content that was published at each offset, by any node."""

    def __init__(self, seed: int, voters: int = 3, observers: int = 0, **settings: str) -> None:
        super().__init__(seed, voters, observers, **SETTINGS | settings)
        self.images: dict[int, object] = {}
        self.counts: dict[str, int] = {}

    def node(self, node_id: int) -> Node:
        node = self.processes[node_id]
        assert isinstance(node, Node)
        return node

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self.ids:
            process = Node(self, node_id, self.config, self.disks[node_id])
            self.processes[node_id] = process
            self.invariants.started(process)
            process.deliver(process.quorum.start)

    def published(self, image: MetadataImage) -> None:
        found = content(image)
        assert self.images.setdefault(image.provenance.offset, found) == found, "two contents at one offset"

    def _append(self, process: Process) -> None:
        try:
            for _ in range(self.random.randrange(1, 4)):
                self.appended += 1
                process.quorum.append([encode(setting(self.random.randrange(40), str(self.appended)))])
        except NotLeader:
            pass


def has_started(world: Nodes, snapshots: int) -> bool:
    return world.counts.get("snapshot_started", 0) >= snapshots


def _converge(world: Nodes) -> None:
    world.run_until(lambda: len(world.processes) == len(world.ids) and world.converged())
    assert world.leader is not None
    target = world.leader.log.end.offset
    world.run_until(lambda: world.high_watermark() >= target)
    world.run_until(
        lambda: min(world.node(each).loader.image.provenance.offset for each in world.processes) >= target - 1
    )


@pytest.mark.thorough
@pytest.mark.clause("KafkaMetadataLogTest.testCreateSnapshotFromEndOffset")
@pytest.mark.clause("S-9", "S-10", "S-11", "S-12", "S-15")
@pytest.mark.parametrize("seed", range(4))
def test_invariants_hold_in_storm_with_snapshots(seed: int) -> None:
    world = Nodes(seed, voters=3, observers=1)
    world.start()
    world.keep_appending()
    storm = Storm(world)
    storm.begin()
    world.run(15 * SECOND_US)
    storm.end()
    _converge(world)
    assert world.counts["snapshot_renamed"] > 2, "the test must make snapshots"


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testFollowerListenerNotified",
    "KafkaRaftClientSnapshotTest.testFetchResponseWithSnapshotId",
)
@pytest.mark.clause("S-9", "S-10", "S-15")
def test_node_without_log_start_catches_up_from_snapshot() -> None:
    world = Nodes(1)
    world.start(0, 1)
    world.keep_appending()
    world.run_until(lambda: world.leader is not None and world.leader.log.start_offset > 100)
    world.start(2)
    world.run_until(lambda: world.counts.get("download_finished", 0) > 0)
    _converge(world)
    late = world.node(2)
    assert late.log.start_offset > 0
    assert late.loader.image.provenance.offset > 100
    assert [fields["position"] for what, fields in late.notes if what == "download_started"] == [0]


@pytest.mark.clause("S-12")
def test_quorum_of_one_is_killed_while_making_snapshot() -> None:
    world = Nodes(2, voters=1)
    world.start()
    world.keep_appending()
    for _ in range(5):
        world.run_until(partial(has_started, world, world.counts.get("snapshot_started", 0) + 1))
        world.kill(0, power_loss=True)
        world.start(0)
        world.run(2 * SECOND_US)
    world.kill(0)
    disk = world.disks[0]
    store = SnapshotStore(disk)
    assert store.latest is not None
    assert content(run_to_end(load_snapshot(disk, store.latest))) == world.images[store.latest.offset - 1]


@pytest.mark.clause("RaftClusterSnapshotTest.testSnapshotsGenerated", "KRaftClusterTest.testSnapshotCount")
@pytest.mark.clause("S-12")
def test_each_node_makes_its_own_snapshots() -> None:
    world = Nodes(4, voters=3, observers=1)
    world.start()
    world.keep_appending()
    made: dict[int, dict[OffsetAndEpoch, bytes]] = {each: {} for each in world.ids}

    def all_have_two() -> bool:
        for node_id, process in world.processes.items():
            for snapshot in process.snapshots.ids:
                store = world.node(node_id).snapshots
                made[node_id].setdefault(snapshot, store.read(snapshot, 0, store.size(snapshot)))
        return all(len(ids) >= 2 for ids in made.values())

    world.run_until(all_have_two)
    assert len(world.invariants.leaders) == 1, "no change of leader"
    for process in world.processes.values():
        noted = [what for what, _ in process.notes if what.startswith(("snapshot", "download"))]
        assert noted.count("snapshot_renamed") >= 2
        assert not any(what.startswith("download") for what in noted), "a node with the log downloads nothing"
    everyones = [{*ids.items()} for ids in made.values()]
    for one in everyones[1:]:
        common = {snapshot for snapshot, _ in one} & {snapshot for snapshot, _ in everyones[0]}
        assert all((each, made[0][each]) in one for each in common), "equal IDs of equal content"


@pytest.mark.clause("S-10")
def test_first_fetch_of_node_down_too_long_returns_snapshot_id() -> None:
    """S-10 with encoded values: the leader names its snapshot, sends no records, and the log continues behind it."""
    world = Nodes(5)
    world.start()
    world.keep_appending()
    world.run_until(lambda: world.high_watermark() > 20)
    assert world.leader is not None
    late = (world.leader.node_id + 1) % 3
    world.kill(late)
    held = world.disks[late]
    world.run_until(lambda: world.leader is not None and world.leader.log.start_offset > 150)
    world.start(late)
    before = world.processes[late].log.end_offset
    world.run_until(lambda: world.counts.get("download_started", 0) > 0)
    assert world.processes[late].log.end_offset == before, "no record was taken beyond the gap"
    world.run_until(lambda: world.counts.get("download_finished", 0) > 0)
    _converge(world)
    assert world.disks[late] is held
    assert world.processes[late].log.start_offset > before


@pytest.mark.clause("S-15")
def test_slow_follower_progresses_despite_new_snapshots() -> None:
    small: dict[str, Any] = {
        "metadata_log_max_record_bytes_between_snapshots": "1000",
        "crucible_metadata_snapshot_fetch_max_bytes": "60",
    }
    world = Nodes(3, **small)
    world.start(0, 1)
    world.keep_appending()
    world.run_until(lambda: world.leader is not None and world.leader.log.start_offset > 100)
    world.start(2)
    world.run_until(lambda: world.counts.get("download_finished", 0) > 0)
    late = world.processes[2]
    fetched = sum(int(fields["bytes"]) for what, fields in late.notes if what == "download_chunk")
    size = next(int(fields["bytes"]) for what, fields in late.notes if what == "download_finished")
    assert world.leader is not None
    superseded = sum(1 for what, _ in world.leader.notes if what == "snapshot_renamed")
    assert superseded > 5
    assert fetched <= 3 * size
