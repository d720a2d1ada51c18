from typing import TYPE_CHECKING

from chaos.checks.batches import batches_of
from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from chaos.checks.tier import NEEDED
from reference_broker.core.events import Event
from reference_broker.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class KeptUntilStored(Check):
    """kept-until-stored: what a replica of a tiered topic has deleted locally lies whole in the tier (P-11, KIP-405).

    Records below the log's start are gone for good, and need to be nowhere. Replicas hear of a new start one after the
    other, so the greatest that any of them had counts. Once all is quiet every replica is looked at again: what lay in
    the tier when it was deleted locally must lie there still.
    """

    guarantee = "kept-until-stored"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._seen: dict[tuple[int, str], int] = {}
        self._starts: dict[str, int] = {}
        self._replicas: dict[int, list[PartitionLog]] = {}
        """By node: its tiered ones, as it had them last."""

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if self.around.alone or not node.broker.config.remote_log_storage_system_enable:
            return
        partitions = node.broker.partitions
        logs = [each.log for each in (*partitions.by_name.values(), *partitions.followed.values())]
        node_id = node.broker.node_id
        self._replicas[node_id] = tiered = [log for log in logs if log.config.remote_storage_enable]
        for log in tiered:
            self._starts[log.directory] = max(log.log_start_offset, self._starts.get(log.directory, 0))
            self._look(at_us, node_id, log)

    def quiet(self, at_us: int) -> None:
        self._seen.clear()
        for node_id, logs in self._replicas.items():
            for log in logs:
                self._look(at_us, node_id, log)

    def _look(self, at_us: int, node_id: int, log: PartitionLog) -> None:
        name, local_start = log.directory, log.local_log_start_offset
        key, start = (node_id, name), self._starts[name]
        if start >= local_start or self._seen.get(key) == local_start:
            return
        self._seen[key] = local_start
        self.looked_at += 1
        for base, end in self._whole_in_tier(name):
            if base <= start < end:
                start = end
        if start < local_start:
            self.violated(
                at_us,
                f"{name} on node {node_id} has no records below {local_start}; the tier has none from {start}",
            )

    def _whole_in_tier(self, name: str) -> list[tuple[int, int]]:
        """Returns the offsets [base, end) of the copies with all their objects, in order."""
        found: dict[str, dict[str, bytes]] = {}
        for key, data in self.around.tier.items():
            if key.startswith(f"{name}-"):
                copy, _, kind = key.rpartition(".")
                found.setdefault(copy, {})[kind] = data
        return sorted(_offsets(each["log"]) for each in found.values() if all(kind in each for kind in NEEDED))


def _offsets(data: bytes) -> tuple[int, int]:
    batches = [batch for batch, _ in batches_of(data)]
    return (batches[0].base_offset, batches[-1].last_offset + 1) if batches else (0, 0)
