"""Large changes of the metadata, its snapshots, and starting from them.

A topic of 10,000 partitions goes out as one transaction of a three-node quorum. Then, in one process and on real files,
a metadata log of 10,000 partitions and 100,000 changes of settings is loaded again and again, in alternation with the
snapshot that replaces it, with everything up to the published image, and nothing after that.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.static.primitive import i8

from bench.micro.node import NOW, MemoryNode
from bench.options import Options, Sizes
from bench.peers.cluster import System
from bench.peers.retrying_client import RetryingClient
from bench.results import Figure, Results, Row, better_lower
from bench.rows.context import LIMIT_S, Progress
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.activation import Endpoint
from reference_broker.controller.metadata_replica import Home, MetadataReplica
from reference_broker.core.randomness import KeyedRandom
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.channels import Channel
from reference_broker.ports.now import Now
from reference_broker.serve.disk import FileDisk
from reference_broker.wire.apis import ApiKey

VOTERS = 3
CHANGES_PER_REQUEST = 5_000
TOPIC = "large"
NEVER = str(2**62)
TOPIC_RESOURCE = 2


def measure(results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress) -> None:
    """Of the reference broker alone: the logs are loaded in this process."""
    if VOTERS in options.nodes:
        _creation(results, systems[0], folder / "cluster", options.sizes, progress)
    _loading(results, folder, options.sizes, progress)


def _creation(results: Results, system: System, folder: Path, sizes: Sizes, progress: Progress) -> None:
    between = {"metadata.log.max.record.bytes.between.snapshots": str(2**16)}
    partitions, creations = sizes.metadata_partitions, sizes.metadata_creations
    with system.launched(folder, VOTERS, between) as cluster, RetryingClient(cluster.ports) as client:
        taken = []
        for number in range(creations):
            progress(f"a topic of {partitions:,} partitions, {number + 1} of {creations}")
            began = time.perf_counter()
            client.create_topic(f"{TOPIC}-{number}", partitions, 1, LIMIT_S)
            taken.append(time.perf_counter() - began)
        time.sleep(2.0)
        size = max((each.stat().st_size for each in folder.glob("*/*/*.checkpoint")), default=0)
    per_topic = Figure((size / creations / 2**10,), "KiB")
    results.rows.append(Row(f"topic of {partitions:,} partitions created, {VOTERS} voters", Figure(tuple(taken), "s")))
    results.rows.append(Row(f"snapshot, for each {partitions:,} partitions", per_topic))


def _loading(results: Results, folder: Path, sizes: Sizes, progress: Progress) -> None:
    what = f"{sizes.metadata_partitions:,} partitions, {sizes.metadata_changes:,} changes"
    progress(f"a log of {what}")
    log = folder / "log"
    _fill(log, sizes, {"metadata.log.max.record.bytes.between.snapshots": NEVER})
    snapshot = folder / "snapshot"
    shutil.copytree(log, snapshot)
    disk = FileDisk(snapshot, 64)
    at_once = {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.bytes": "0"}
    node = MemoryNode(disk, at_once)
    node.create_topic("the-last-change", 1)
    disk.close()
    times: dict[Path, list[float]] = {log: [], snapshot: []}
    for number in range(sizes.metadata_loads):
        for place, taken in times.items():
            progress(f"load of the {place.name}, {number + 1} of {sizes.metadata_loads}")
            taken.append(_load_s(place))
    replayed, loaded = Figure(tuple(times[log]), "s"), Figure(tuple(times[snapshot]), "s")
    results.rows.append(Row(f"replay of the metadata log, {what}", replayed))
    results.rows.append(Row("load of the snapshot that replaces it", loaded))
    results.rows.append(Row("snapshot against replay", better_lower(loaded, replayed)))


def _fill(folder: Path, sizes: Sizes, config: dict[str, str]) -> None:
    disk = FileDisk(folder, 64)
    node = MemoryNode(disk, config)
    node.create_topic(TOPIC, sizes.metadata_partitions)
    for first in range(0, sizes.metadata_changes, CHANGES_PER_REQUEST):
        changes = range(first, first + CHANGES_PER_REQUEST)
        for each in range(0, CHANGES_PER_REQUEST, 10):
            answer = node.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, _altering(changes[each : each + 10]))
            assert isinstance(answer, IncrementalAlterConfigsResponse)
            assert not int(answer.responses[0].error_code), answer.responses[0]
    disk.close()


_SETTINGS = (
    "delete.retention.ms",
    "index.interval.bytes",
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
