"""Judges ``closed-segments-stored`` from files and ListOffsets.

The files of a partition's leader show its segments, so the suite must have started that node. ListOffsets with the
latest tiered offset (KIP-1005) shows up to which offset the partition is in the tier.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

from bench.fleet.behaviours.bodies import list_offsets_request, metadata_request
from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.negotiation import CONNECT_LIMIT_US
from bench.fleet.spec import address_of
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.apis import ApiKey
from reports.manifest import CheckResult
from scenarios.model import Scenario

GUARANTEE: Final = "closed-segments-stored"
LIMIT_S: Final = 60.0
"""Limit of the time between uploads of closed segments of an external target after the heal, until all are in the
tier."""
OWN_LIMIT_S: Final = 15.0
"""The same limit for the reference broker, whose scenarios retry a copy within a second or two."""
LOOK_EVERY_S: Final = 0.5
CALL_LIMIT_US: Final = 5_000_000
LATEST_TIERED: Final = -5
TIERED_VERSION: Final = 9
"""The first version of ListOffsets that knows LATEST_TIERED."""
CLIENT_ID: Final = "crucible-tier"


class SegmentsNode(Protocol):
    """The members of a node that the check needs. ``listen`` is HOST:PORT without a proxy, ``advertised`` the address
    in its metadata."""

    @property
    def listen(self) -> str: ...
    @property
    def advertised(self) -> str: ...
    @property
    def data(self) -> Path: ...
    @property
    def running(self) -> bool: ...


@dataclass(slots=True)
class ClosedSegments:
    """Closed segments of the tiered topics of one run."""

    nodes: Sequence[SegmentsNode]
    topics: Mapping[str, int]
    """Number of partitions."""
    metadata_version: int
    limit_s: float = LIMIT_S
    """Limit of the wait for the next segment."""
    left: list[str] = field(default_factory=list)
    """Segments that were missing at the last check."""
    looked_at: int = 0
    _again_s: float = 0.0
    _progress_s: float = 0.0

    def waited_for(self) -> bool:
        """Return whether the wait is over: all segments are stored, or none was stored within the limit. Most calls
        check nothing, so calls are cheap. A node that does not respond is retried."""
        now_s = time.monotonic()
        if now_s < self._again_s:
            return False
        self._again_s = now_s + LOOK_EVERY_S
        before = self.left
        stored = False
        with suppress(TransportError):
            self.left = list(self._missing())
            stored = not self.left
        if not self._progress_s or (self.left and len(self.left) < len(before)):
            self._progress_s = now_s
        return stored or now_s > self._progress_s + self.limit_s

    def judged(self, at_us: int) -> CheckResult:
        missing = f"{len(self.left)} closed segments were not in the tier after the heal, and none got there within "
        detail = f"{missing}{self.limit_s:g} s: {', '.join(self.left[:5])}" if self.left else ""
        return CheckResult(
            guarantee=GUARANTEE, holds=not self.left, evidence=self.looked_at, at_us=at_us, detail=detail
        )

    def _missing(self) -> Iterator[str]:
        """Raise TransportError."""
        self.looked_at = 0
        for where, node in self._leaders().items():
            bases = bases_in(node.data / f"{where.topic}-{where.partition}")
            tiered = _tiered(node, where) if len(bases) > 1 else -1
            for base, end in pairwise(bases):
                self.looked_at += 1
                if tiered < end - 1:
                    yield f"{where.topic}-{where.partition} from {base} to {end}"

    def _leaders(self) -> dict[TopicPartition, SegmentsNode]:
        running = next(node for node in self.nodes if node.running)
        metadata = _response(running, ApiKey.METADATA, self.metadata_version, metadata_request(list(self.topics)))
        at = {node.advertised: node for node in self.nodes}
        nodes = {int(broker.node_id): at[f"{broker.host}:{broker.port}"] for broker in metadata.brokers}
        return {
            TopicPartition(str(topic.name), int(partition.partition_index)): nodes[int(partition.leader_id)]
            for topic in metadata.topics
            for partition in topic.partitions
            if int(partition.leader_id) in nodes
        }


def segments_of(
    scenario: Scenario, nodes: Sequence[SegmentsNode], prefix: str, version: int, limit_s: float = LIMIT_S
) -> ClosedSegments | None:
    """Return None if the scenario does not promise the guarantee. The run's topics begin with ``prefix``."""
    topics = {
        f"{prefix}{topic.name}": topic.partitions
        for topic in scenario.load.topics
        if dict(topic.config).get("remote.storage.enable") == "true"
    }
    return ClosedSegments(nodes, topics, version, limit_s) if GUARANTEE in scenario.guarantees and topics else None


def bases_in(folder: Path) -> list[int]:
    """Return the first offset of each segment, ascending. The last segment is the active one."""
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def _tiered(node: SegmentsNode, where: TopicPartition) -> int:
    """Return the last offset in the tier, or -1. Raise TransportError."""
    response = _response(node, ApiKey.LIST_OFFSETS, TIERED_VERSION, list_offsets_request([where], LATEST_TIERED))
    (found,) = (partition for topic in response.topics for partition in topic.partitions)
    return -1 if int(found.error_code.value) else int(found.offset)


def _response(node: SegmentsNode, api_key: ApiKey, version: int, body: object) -> Any:
    address = address_of(node.listen)
    with Connection.open(address.host, address.port, CONNECT_LIMIT_US, CLIENT_ID) as connection:
        return connection.call(api_key, version, body, CALL_LIMIT_US)
