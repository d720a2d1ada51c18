"""switch-respected: nothing uses the metadata epoch before ``crucible.metadata.epoch`` is finalized, and clients that
know one go on when it is switched off (M-14).

Until then no draft request goes between brokers, and offsets are stored in Kafka's own schema, without the epoch.
Afterwards a node that has told clients an epoch tells no smaller one while its process lives. Clients drop metadata
with a smaller one (M-5), so they would take none any more.
"""

from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING

from chaos.checks.batches import read_batches
from chaos.checks.check import OFFSETS_TOPIC, Check
from chaos.checks.records import records_in
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Reply, Send
from reference_broker.core.events import Event
from reference_broker.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FEATURE = "crucible.metadata.epoch"
METADATA = 3
UPDATE_METADATA = 6
"""Kafka's API key, which D-1 keeps for the draft."""
OFFSET_KEY_VERSIONS = (0, 1)
WITH_EPOCH = 4
"""Version of an offset's value that holds the epoch, as a tagged field."""


class SwitchRespected(Check):
    """With ``alone`` the check sees one node only, and judges only what is appended while this node leads.

    Another node may have seen the feature finalized and written with it, before this node saw the feature and took over
    the lead.
    """

    guarantee = "switch-respected"
    needs_one_node = True
    acts_on = ((Send, UPDATE_METADATA), METADATA, NoneType)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._alone = around.alone
        self._on = False
        """Some node has seen the feature finalized."""
        self._read_to: dict[tuple[int, int, str, int], int] = {}
        self._told: dict[int, int] = {}
        """The epoch that each node has told clients last."""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        if event is None:
            self._told.pop(node.broker.node_id, None)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == METADATA:
                self._look_at_told(at_us, node.broker.node_id, getattr(effect.body, "metadata_epoch", None))
        if self._on:
            return  # M-14 speaks of the time before some node has seen the feature finalized.
        self._on = _is_on(node)
        for effect in effects:
            if type(effect) is Send and effect.api_key == UPDATE_METADATA and not self._on:
                self.violated(at_us, f"node {node.broker.node_id} sent UpdateMetadata before {FEATURE} was finalized")

    def _look_at_told(self, at_us: int, node_id: int, epoch: int | None) -> None:
        if epoch is None:
            return  # Only the draft versions of Metadata tell one.
        before = self._told.setdefault(node_id, epoch)
        if epoch < before:
            self.violated(at_us, f"node {node_id} told a client metadata epoch {epoch} after it had told {before}")
        self._told[node_id] = max(before, epoch)

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if self._on or OFFSETS_TOPIC not in node.broker.partitions.topic_ids:
            return
        self._on = _is_on(node)
        if self._on:
            return
        for (topic, index), partition in node.broker.partitions.by_name.items():
            if topic == OFFSETS_TOPIC:
                reign = partition.leader_epoch if self._alone else 0
                key = (node.broker.node_id, incarnation, f"{topic}-{index}", reign)
                self._look(at_us, key, partition.log)

    def _look(self, at_us: int, key: tuple[int, int, str, int], log: PartitionLog) -> None:
        node_id, _, name, _ = key
        first = log.log_end_offset if self._alone else 0
        offset = max(self._read_to.setdefault(key, first), log.log_start_offset)
        self._read_to[key] = max(offset, log.log_end_offset)
        for batch, data in read_batches(log, offset, log.log_end_offset):
            for record in records_in(data):
                if _is_offset(record.key) and _version(record.value) >= WITH_EPOCH:
                    self.violated(
                        at_us,
                        f"node {node_id} wrote an offset with its metadata epoch in {name} {batch.named} before "
                        f"{FEATURE} was finalized",
                    )


def _is_on(node: "Node") -> bool:
    return node.listening and node.broker.loader.image.features.get(FEATURE, 0) > 0  # Before that it has no image.


def _is_offset(key: bytes | None) -> bool:
    return _version(key) in OFFSET_KEY_VERSIONS


def _version(data: bytes | None) -> int:
    """Returns the version, an int16 at the start of both keys and values."""
    return -1 if data is None or len(data) < 2 else int.from_bytes(data[:2], "big")
