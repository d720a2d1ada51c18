"""Measures large changes of the metadata, the size of its snapshots, and how long loading them takes.

First a quorum of three nodes creates topics of 10,000 partitions, each in one transaction. Then this process loads a
metadata log of 10,000 partitions and 100,000 changes of settings from real files, in turn with the snapshot that
replaces it. A load ends when the metadata image is published.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse

from bench.fleet.behaviours.bodies import set_topic_configs_request
from bench.micro.node import NOW, MemoryNode
from bench.peers.clients import RetryingClient
from bench.peers.cluster import System
from bench.rows.context import LIMIT_S, BenchRun, Progress, row
from bench.rows.options import Sizes
from bench.rows.results import Figure, ResultRow, Results, better_lower
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.listeners import Endpoint
from reference_broker.controller.metadata_quorum_node import MetadataQuorumNode, NodeSetup
from reference_broker.core.randomness import KeyedRandom
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Now
from reference_broker.serve.disk import FileDisk
from reference_broker.wire.apis import ApiKey

VOTERS = 3
TOPIC = "large"
NEVER = str(2**62)


@row("metadata")
def measure_metadata(bench: BenchRun) -> None:
    """Measure the reference broker alone, because the logs are loaded in this process."""
    if VOTERS in bench.options.nodes:
        _creation(bench.results, bench.systems[0], bench.folder / "cluster", bench.options.sizes, bench.progress)
    _loading(bench.results, bench.folder, bench.options.sizes, bench.progress)


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
        size = max((path.stat().st_size for path in folder.glob("*/*/*.checkpoint")), default=0)
    per_topic = Figure((size / creations / 2**10,), "KiB")
    results.rows.append(
        ResultRow(f"topic of {partitions:,} partitions created, {VOTERS} voters", Figure(tuple(taken), "s"))
    )
    results.rows.append(ResultRow(f"snapshot, for each {partitions:,} partitions", per_topic))


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
    results.rows.append(ResultRow(f"replay of the metadata log, {what}", replayed))
    results.rows.append(ResultRow("load of the snapshot that replaces it", loaded))
    results.rows.append(ResultRow("snapshot against replay", better_lower(loaded, replayed)))


def _fill(folder: Path, sizes: Sizes, config: dict[str, str]) -> None:
    disk = FileDisk(folder, 64)
    node = MemoryNode(disk, config)
    node.create_topic(TOPIC, sizes.metadata_partitions)
    for first in range(0, sizes.metadata_changes, len(_SETTINGS)):
        values = {name: str(1_000_000 + first + number) for number, name in enumerate(_SETTINGS)}
        response = node.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, set_topic_configs_request([TOPIC], values))
        assert isinstance(response, IncrementalAlterConfigsResponse)
        assert not int(response.responses[0].error_code), response.responses[0]
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


class _Alone:
    """The ports of a replica that is loaded and never takes part in a quorum."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def now(self) -> Now:
        return NOW

    def at_end(self, step: Callable[[], None]) -> None:
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        if deadline_us <= NOW.mono_us:
            self.due.append(fire)
        return 0

    def cancel_timer(self, timer: int) -> None:
        """Timers that were kept are due at once, so none of them is cancelled."""

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:  # noqa: ARG002
        done()

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        """Nobody reads the trace."""

    def send(self, *args: object, **named: object) -> None:
        """A replica that is only loaded sends no requests."""
        raise AssertionError((args, named))


def _load_s(folder: Path) -> float:
    """Return the seconds until all that the log and its newest snapshot hold is published."""
    ports, disk = _Alone(), FileDisk(folder, 64)
    setup = NodeSetup(
        0,
        BrokerConfig.parse({}),
        disk,
        ports,
        lambda purpose: KeyedRandom(1, purpose),
        (Endpoint("127.0.0.1", 1),),
        Metrics(),
    )
    began = time.perf_counter()
    replica = MetadataQuorumNode(setup)
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
