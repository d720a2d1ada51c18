"""Judges from outside whether the closed segments of tiered topics get to the remote tier (closed-segments-stored).

Which segments a partition has shows in the files of its leader, so we must have started that. How far the partition is
in the tier its leader tells (ListOffsets with the latest tiered offset, KIP-1005).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.fleet.behaviours.bodies import list_offsets_request, metadata_request
from bench.fleet.behaviours.protocol import TopicPartition
from bench.fleet.negotiation import CONNECT_LIMIT_US
from bench.fleet.spec import address_of
from chaos.live.outside.node import TargetNode
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.apis import ApiKey
from reports.manifest import Check
from scenarios.model import Scenario

GUARANTEE: Final = "closed-segments-stored"
LIMIT_S: Final = 60.0
"""After the heal a closed segment must be in the tier within this time."""
LOOK_EVERY_S: Final = 0.5
CALL_LIMIT_US: Final = 5_000_000
LATEST_TIERED: Final = -5
TIERED_VERSION: Final = 9
"""The first version of ListOffsets that knows LATEST_TIERED."""
CLIENT_ID: Final = "crucible-tier"


@dataclass(slots=True)
class ClosedSegments:
    """``nodes`` are those of the target. ``topics`` has the number of partitions of each tiered topic, and
    ``metadata_version`` is that of Metadata. ``left`` names what was missing at the last look."""

    nodes: Sequence[TargetNode]
    topics: Mapping[str, int]
    metadata_version: int
    left: list[str] = field(default_factory=list)
    looked_at: int = 0
    _again_s: float = 0.0

    def are_stored(self) -> bool:
        """Looks now and then. A node that does not answer is asked again."""
        now_s = time.monotonic()
        if now_s < self._again_s:
            return False
        self._again_s = now_s + LOOK_EVERY_S
        with suppress(TransportError):
            self.left = list(self._missing())
            return not self.left
        return False

    def judged(self, at_us: int) -> Check:
        told = f"{LIMIT_S:g} s after the heal {len(self.left)} closed segments were not in the tier: "
        detail = told + ", ".join(self.left[:5]) if self.left else ""
        return Check(guarantee=GUARANTEE, holds=not self.left, evidence=self.looked_at, at_us=at_us, detail=detail)

    def _missing(self) -> Iterator[str]:
        """Raises TransportError."""
        self.looked_at = 0
        for where, node in self._leaders().items():
            bases = bases_in(node.data / f"{where.topic}-{where.partition}")
            tiered = _tiered(node, where) if len(bases) > 1 else -1
            for base, end in pairwise(bases):
                self.looked_at += 1
                if tiered < end - 1:
                    yield f"{where.topic}-{where.partition} from {base} to {end}"

    def _leaders(self) -> dict[TopicPartition, TargetNode]:
        asked = next(each for each in self.nodes if each.running)
        answer = _asked(asked, ApiKey.METADATA, self.metadata_version, metadata_request(list(self.topics)))
        at = {each.listen: each for each in self.nodes}
        told = {int(each.node_id): at[f"{each.host}:{each.port}"] for each in answer.brokers}
        return {
            TopicPartition(str(topic.name), int(each.partition_index)): told[int(each.leader_id)]
            for topic in answer.topics
            for each in topic.partitions
            if int(each.leader_id) in told
        }


def segments_of(scenario: Scenario, nodes: Sequence[TargetNode], prefix: str, version: int) -> ClosedSegments | None:
    """Returns None if the scenario promises nothing of them, or if the nodes' files are not known."""
    topics = {
        f"{prefix}{each.name}": each.partitions
        for each in scenario.load.topics
        if dict(each.config).get("remote.storage.enable") == "true"
    }
    if GUARANTEE not in scenario.guarantees or not topics or any(each.layout is None for each in nodes):
        return None
    return ClosedSegments(nodes, topics, version)


def bases_in(folder: Path) -> list[int]:
    """Returns the first offset of each segment, ascending. The last segment is the active one."""
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def _tiered(node: TargetNode, where: TopicPartition) -> int:
    """Returns the last offset in the tier, or -1. Raises TransportError."""
    answer = _asked(node, ApiKey.LIST_OFFSETS, TIERED_VERSION, list_offsets_request([where], LATEST_TIERED))
    (told,) = (each for topic in answer.topics for each in topic.partitions)
    return -1 if int(told.error_code.value) else int(told.offset)


def _asked(node: TargetNode, api_key: ApiKey, version: int, body: object) -> Any:
    address = address_of(node.listen)
    connection = Connection.open(address.host, address.port, CONNECT_LIMIT_US)
    try:
        return connection.call(int(api_key), version, CLIENT_ID, body, CALL_LIMIT_US).body
    finally:
        connection.close()
