"""Measures a new consumer of a new group from first request to first record, with Kafka's default delay and without."""

import time
from collections.abc import Sequence
from pathlib import Path

from bench.alternation import Samples, alternate
from bench.options import Options
from bench.peers.clients import FETCH_VERSION, RawConnection, RetryingClient, batch_of
from bench.peers.cluster import Cluster, System
from bench.peers.group_clients import RawMember, await_coordinator, subscription_of
from bench.peers.node import PeerError
from bench.results import Results
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, row
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic

DELAY = "group.initial.rebalance.delay.ms"
DELAYS_MS = (3000, 0)
"""The default of both brokers, and none."""
TOPIC = "joined"


@row("group-join")
def measure_group_join(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    names = [system.name for system in systems]
    for delay_ms in DELAYS_MS:
        taken = Samples(names, "ms")
        with all_up(systems, folder / f"join-{delay_ms}", 1, {DELAY: str(delay_ms)}) as clusters:
            for cluster in clusters:
                _prepare(cluster)
            for pair, cluster in alternate(clusters, options.sizes.join_pairs):
                taken_ms = _first_record_ms(cluster, f"group-{pair}")
                taken.add(cluster.name, taken_ms)
                progress(f"group join, delay {delay_ms} ms: {cluster.name} gave a record after {taken_ms:.0f} ms")
        results.beside(f"group join to first record, {DELAY}={delay_ms}", taken.figures(), less_is_better=True)


def _prepare(cluster: Cluster) -> None:
    """Writes a record to a new topic, then joins twice, so that the offsets topic exists and the broker has loaded its
    code. Raises PeerError."""
    make_topic(cluster, TOPIC)
    with RetryingClient(cluster.ports) as client:
        client.acknowledged(TOPIC, 0, batch_of(100), LIMIT_S)
    for number in range(2):
        _first_record_ms(cluster, f"warm-{number}")


def _first_record_ms(cluster: Cluster, group: str) -> float:
    """Raises PeerError."""
    with RawConnection(cluster.ports[0]) as connection:
        began = time.perf_counter()
        await_coordinator(connection, group, LIMIT_S)
        member = RawMember(connection, group)
        error: Error | int = ErrorCode.member_id_required
        while error == ErrorCode.member_id_required:
            member.begin_join(subscription_of(TOPIC))
            error = member.end_join()
        member.begin_sync({member.member_id: TOPIC.encode()})
        assigned = member.end_sync().decode()
        wanted = FetchTopic(assigned, NO_TOPIC_ID, [FetchPartition(0, 0, 1 << 20)])
        body = FetchRequest(max_wait_ms=1000, topics=[wanted])
        answer = connection.call(ApiKey.FETCH, FETCH_VERSION, body)
        taken_ms = (time.perf_counter() - began) * 1000
    if not answer.responses[0].partitions[0].records:  # type: ignore[attr-defined]
        raise PeerError(f"{cluster.name} gave a new member no record")
    return taken_ms
