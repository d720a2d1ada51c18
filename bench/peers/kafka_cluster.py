"""Combined nodes of Apache Kafka in KRaft mode, with the heap of its own start script."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.peers.cluster import Cluster, target_cluster
from bench.peers.kafka import HEAP, SETTINGS
from bench.targets.loader import find

KAFKA_NAME = "Apache Kafka"


@contextmanager
def kafka_cluster(
    folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = ()
) -> Iterator[Cluster]:
    """Makes new nodes below ``folder``, which are formatted and not launched. Raises PeerError when that fails."""
    chosen = replace(find("kafka"), nodes=nodes)
    with target_cluster(chosen, folder, {**SETTINGS, **config}, {"vm": HEAP}, advertised) as cluster:
        yield cluster
