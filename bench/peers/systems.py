"""The two systems that are compared, the reference broker and Apache Kafka, also with a remote tier in a local folder.

Apache Kafka has LocalTieredStorage (``bench/targets/kafka.toml``), which writes files and does not sync them. The
reference broker writes them through obstore, and syncs each before its segment is listed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.fleet.behaviours.bodies import list_offsets_request, set_topic_configs_request
from bench.fleet.behaviours.protocol import TopicPartition
from bench.peers.clients import connect
from bench.peers.cluster import PeerCluster, System
from bench.peers.kafka import KAFKA_NAME, kafka_cluster
from bench.peers.node import PeerError
from bench.peers.reference import REFERENCE_NAME, reference_cluster
from reference_broker.blocking.transport import Connection
from reference_broker.wire.apis import ApiKey

REFERENCE = System(REFERENCE_NAME, reference_cluster)
KAFKA = System(KAFKA_NAME, kafka_cluster)


def systems(peer: str | None) -> list[System]:
    """Return the reference broker, and after it the peer, if there is one. ``peer`` is None or ``kafka``."""
    return [REFERENCE, KAFKA] if peer else [REFERENCE]


BOTH = {
    "remote.log.storage.system.enable": "true",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
}
OFFSETS_VERSION = 9
"""The first with LATEST_TIERED (KIP-1005)."""
ALTER_VERSION = 1
EARLIEST_LOCAL = -4
LATEST_TIERED = -5


def tiered(system: System) -> System:
    """The same broker with a remote tier: the folder ``tier`` beside its nodes."""
    return System(system.name, _kafka if system.name == KAFKA_NAME else _reference)


@contextmanager
def _reference(
    folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = ()
) -> Iterator[PeerCluster]:
    settings = {**BOTH, "crucible.remote.store.url": str(folder / "tier"), **config}
    with reference_cluster(folder, nodes, settings, advertised) as cluster:
        yield cluster


@contextmanager
def _kafka(
    folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = ()
) -> Iterator[PeerCluster]:
    with kafka_cluster(folder, nodes, {**BOTH, **config}, advertised) as cluster:
        yield cluster


def make_tiered(cluster: PeerCluster, topic: str) -> None:
    """Raise PeerError."""
    body = set_topic_configs_request([topic], {"remote.storage.enable": "true"})
    with connect(cluster.ports[0]) as connection:
        response = connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, body)
    error = int(response.responses[0].error_code)
    if error:
        raise PeerError(f"{topic} did not become tiered on {cluster.name}: error {error}")


def offsets(connection: Connection, topic: str, partitions: int, at: int) -> list[int]:
    """The offset that each partition returns for one of the special times, and -1 where it returns none."""
    named = [TopicPartition(topic, index) for index in range(partitions)]
    response = connection.call(ApiKey.LIST_OFFSETS, OFFSETS_VERSION, list_offsets_request(named, at))
    rows = response.topics[0].partitions
    found = {int(row.partition_index): int(row.offset) for row in rows if row.error_code == 0}
    return [found.get(index, -1) for index in range(partitions)]


def closed_segments(home: Path, topic: str, partitions: int) -> list[tuple[int, int]]:
    """Return for each partition the end offset of its closed segments and their bytes. ``home`` is
    the folder of a cluster of one node. It is read from the files, in the same way for both brokers."""
    return [_closed(home, f"{topic}-{index}") for index in range(partitions)]


def _closed(home: Path, directory: str) -> tuple[int, int]:
    found = sorted((int(path.stem), path.stat().st_size) for path in home.glob(f"node-0/**/{directory}/*.log"))
    return found[-1][0], sum(size for _, size in found[:-1])
