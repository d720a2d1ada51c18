"""Measures what a produce and a fetch of one record cost, by the record's size. One request is in flight at a time."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.alternation import Samples, alternate
from bench.options import Options
from bench.peers.clients import FETCH_VERSION, PRODUCE_VERSION, RawConnection, base_offset, batch_of, produce_request
from bench.peers.cluster import Cluster, System
from bench.peers.node import PeerError
from bench.results import Curve, Results, Series
from bench.rows.context import Progress, all_up, make_topic, row
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.messages import decode_response

TOPIC = "records"
WARM_BLOCKS = 8


@row("records")
def measure_records(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    sizes, names = options.sizes, [system.name for system in systems]
    produced = {size: Samples(names, "ms") for size in sizes.record_bytes}
    fetched = {size: Samples(names, "ms") for size in sizes.record_bytes}
    with all_up(systems, folder / "records", 1, {}) as clusters:
        probes = [_Probe.at(cluster) for cluster in clusters]
        for probe in probes:  # Not counted: Java compiles what runs often.
            progress(f"record sizes: {probe.name} warms up")
            for size in sizes.record_bytes:
                probe.block_ms(size, WARM_BLOCKS * sizes.record_rounds)
        for block, probe in alternate(probes, sizes.record_blocks):
            progress(f"record sizes: block {block + 1} of {sizes.record_blocks} on {probe.name}")
            for size in sizes.record_bytes:
                produce_ms, fetch_ms = probe.block_ms(size, sizes.record_rounds)
                produced[size].add(probe.name, produce_ms)
                fetched[size].add(probe.name, fetch_ms)
        for probe in probes:
            probe.connection.close()
    for what, measured in (("produce", produced), ("fetch", fetched)):
        for size in sizes.record_bytes:
            work = f"{what}, one record of {size:,} bytes in a request"
            results.beside(work, measured[size].figures(), less_is_better=True)
        series = tuple(
            Series(name, tuple((float(size), measured[size].figure(name)) for size in sizes.record_bytes))
            for name in names
        )
        results.curves.append(
            Curve(f"{what.capitalize()}, one record in a request", "bytes of the record", f"time of a {what}", series)
        )


@dataclass(slots=True)
class _Probe:
    """Produces and fetches on one connection and one partition. ``end`` is the offset of the next record.

    Every method raises PeerError.
    """

    name: str
    connection: RawConnection
    end: int = 0

    @classmethod
    def at(cls, cluster: Cluster) -> "_Probe":
        make_topic(cluster, TOPIC, config={"max.message.bytes": str(2 << 20)})
        return cls(cluster.name, RawConnection(cluster.ports[0]))

    def block_ms(self, record_bytes: int, rounds: int) -> tuple[float, float]:
        """Returns the median milliseconds of a produce, and of a fetch of what it wrote."""
        batch = batch_of(record_bytes)
        taken = [(self._produce_ms(batch), self._fetch_ms(record_bytes)) for _ in range(rounds)]
        produced, fetched = zip(*taken, strict=True)
        return statistics.median(produced), statistics.median(fetched)

    def _produce_ms(self, batch: bytes) -> float:
        answer, taken_ms = self._timed(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(TOPIC, 0, batch))
        self.end = base_offset(answer, self.name) + 1
        return taken_ms

    def _fetch_ms(self, record_bytes: int) -> float:
        topic = FetchTopic(TOPIC, NO_TOPIC_ID, [FetchPartition(0, self.end - 1, 2 << 20)])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=50 << 20, topics=[topic])
        answer, taken_ms = self._timed(ApiKey.FETCH, FETCH_VERSION, request)
        records = answer.responses[0].partitions[0].records  # type: ignore[attr-defined]
        if records is None or len(records) < record_bytes:
            raise PeerError(f"{self.name} answered a fetch without the record that it has acknowledged")
        return taken_ms

    def _timed(self, api_key: int, version: int, body: object) -> tuple[object, float]:
        frame = self.connection.encode(api_key, version, body)
        began = time.perf_counter()
        answered = self.connection.exchange(frame)
        taken_ms = (time.perf_counter() - began) * 1000
        return decode_response(api_key, version, memoryview(answered))[1], taken_ms
