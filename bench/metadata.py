"""``crucible bench --metadata``: large changes of the metadata, its snapshots, and starting from them.

A topic of 10,000 partitions goes out as one transaction of a three-node quorum. Then, in one process and on real files,
a metadata log of 10,000 partitions and 100,000 changes of settings is loaded again and again, in alternation with the
snapshot that replaces it, with everything up to the published image, and nothing after that.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.static.primitive import i8

from bench.fleet.behaviours.bodies import METADATA, metadata_request
from bench.micro.node import NOW, MemoryNode
from bench.peers.errors import PeerError
from bench.peers.raw_client import RawConnection, create_topic
from bench.reference_cluster import ClusterNode, reference_cluster
from bench.results import Figure, Results, Row, better_lower
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.activation import Endpoint
from reference_broker.controller.metadata_replica import Home, MetadataReplica
from reference_broker.core.randomness import KeyedRandom
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.channels import Channel
from reference_broker.ports.now import Now
from reference_broker.serve.disk import FileDisk
from reference_broker.wire.apis import ApiKey

Progress = Callable[[str], None]

PARTITIONS = 10_000
CREATIONS = 7
CHANGES = 100_000
CHANGES_PER_REQUEST = 5_000
LOADS = 7
TOPIC = "large"
NEVER = str(2**62)
TOPIC_RESOURCE = 2
METADATA_VERSION = 12


def run(progress: Progress) -> Results:
    """Raises bench.peers.errors.PeerError when the cluster does not come up."""
    results = Results(None)
    with tempfile.TemporaryDirectory(prefix="crucible-metadata-") as scratch:
        folder = Path(scratch)
        _creation(results, folder / "cluster", progress)
        _loading(results, folder, progress)
    return results


def _creation(results: Results, folder: Path, progress: Progress) -> None:
    between = {"metadata.log.max.record.bytes.between.snapshots": str(2**16)}
    with reference_cluster(folder, 3, between) as nodes:
        taken = []
        for number in range(CREATIONS):
            progress(f"a topic of {PARTITIONS:,} partitions, {number + 1} of {CREATIONS}")
            with RawConnection(_controller_port(nodes[0])) as connection:
                began = time.perf_counter()
                create_topic(connection, f"{TOPIC}-{number}", PARTITIONS)
                taken.append(time.perf_counter() - began)
        time.sleep(2.0)
        sizes = [max((each.stat().st_size for each in folder.glob("*/*/*.checkpoint")), default=0)]
    per_topic = Figure(tuple(size / CREATIONS / 2**10 for size in sizes), "KiB")
    results.rows.append(Row(f"topic of {PARTITIONS:,} partitions created, 3 voters", Figure(tuple(taken), "s")))
    results.rows.append(Row(f"snapshot, for each {PARTITIONS:,} partitions", per_topic))


def _controller_port(node: ClusterNode) -> int:
    """As ``node`` names it."""
    with RawConnection(node.port) as connection:
        answer = connection.call(METADATA, METADATA_VERSION, metadata_request([]))
    ports = {int(one.node_id): int(one.port) for one in answer.brokers}  # type: ignore[attr-defined]
    controller = int(answer.controller_id)  # type: ignore[attr-defined]
    if controller not in ports:
        raise PeerError("the cluster has no controller")
    return ports[controller]


def _loading(results: Results, folder: Path, progress: Progress) -> None:
    progress(f"a log of {PARTITIONS:,} partitions and {CHANGES:,} changes")
    log = folder / "log"
    _fill(log, {"metadata.log.max.record.bytes.between.snapshots": NEVER})
    snapshot = folder / "snapshot"
    shutil.copytree(log, snapshot)
    disk = FileDisk(snapshot, 64)
    at_once = {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.bytes": "0"}
    node = MemoryNode(disk, at_once)
    node.create_topic("the-last-change", 1)
    disk.close()
    times: dict[Path, list[float]] = {log: [], snapshot: []}
    for number in range(LOADS):
        for place, taken in times.items():
            progress(f"load of the {place.name}, {number + 1} of {LOADS}")
            taken.append(_load_s(place))
    replayed, loaded = Figure(tuple(times[log]), "s"), Figure(tuple(times[snapshot]), "s")
    what = f"{PARTITIONS:,} partitions, {CHANGES:,} changes"
    results.rows.append(Row(f"replay of the metadata log, {what}", replayed))
    results.rows.append(Row("load of the snapshot that replaces it", loaded))
    results.rows.append(Row("snapshot against replay", better_lower(loaded, replayed)))


def _fill(folder: Path, config: dict[str, str]) -> None:
    disk = FileDisk(folder, 64)
    node = MemoryNode(disk, config)
    node.create_topic(TOPIC, PARTITIONS)
    for first in range(0, CHANGES, CHANGES_PER_REQUEST):
        changes = range(first, first + CHANGES_PER_REQUEST)
        for each in range(0, CHANGES_PER_REQUEST, 10):
            answer = node.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, _altering(changes[each : each + 10]))
            assert isinstance(answer, IncrementalAlterConfigsResponse)
            assert not int(answer.responses[0].error_code), answer.responses[0]
    disk.close()


_SETTINGS = (
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "max.message.bytes",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
    "segment.index.bytes",
)


def _altering(numbers: range) -> IncrementalAlterConfigsRequest:
    """Ten changes of one topic's settings."""
    configs = tuple(
        AlterableConfig(name=name, config_operation=i8(0), value=str(1_000_000 + number))
        for name, number in zip(_SETTINGS, numbers, strict=True)
    )
    resource = AlterConfigsResource(resource_type=i8(TOPIC_RESOURCE), resource_name=TOPIC, configs=configs)
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)


class _Alone:
    """Ports of a replica that is loaded and never takes part in anything."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def now(self) -> Now:
        return NOW

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        if deadline_us <= NOW.mono_us:
            self.due.append(fire)
        return 0

    def cancel_timer(self, timer: int) -> None:
        """None that was kept can be meant: those run at once."""

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:  # noqa: ARG002
        done()

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        """Not looked at."""

    def send(
        self,
        peer: int,
        channel: Channel,
        api_key: int,
        api_version: int,
        body: object,
        timeout_ms: int,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        """A replica that is only loaded has nobody to ask."""
        raise AssertionError((peer, channel, api_key, api_version, body, timeout_ms, replied, failed))


def _load_s(folder: Path) -> float:
    """Until all that the log and its newest snapshot hold is published."""
    ports, disk = _Alone(), FileDisk(folder, 64)
    home = Home(
        0,
        BrokerConfig.parse({}),
        disk,
        ports,
        lambda purpose: KeyedRandom(1, purpose),
        Endpoint("127.0.0.1", 1),
        Metrics(),
    )
    began = time.perf_counter()
    replica = MetadataReplica(home)
    for _ in replica.load(clean=True):
        pass
    end_offset = replica.log.end.offset
    replica.loader.catch_up(end_offset)
    while replica.loader.last_offset + 1 < end_offset:
        ports.due.pop(0)()
    taken = time.perf_counter() - began
    assert TOPIC in replica.loader.image.topics, "the topic is gone"
    disk.close()
    return taken
