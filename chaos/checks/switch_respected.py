from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING

from chaos.checks.batches import read_batches, records_in
from chaos.checks.check import Check
from chaos.checks.history import OFFSETS_TOPIC
from chaos.checks.one_content_per_epoch import METADATA
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Reply, Send
from reference_broker.core.events import Event
from reference_broker.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FEATURE = "crucible.metadata.epoch"
UPDATE_METADATA = 6
"""Kafka's API key, which D-1 keeps for the draft."""
OFFSET_KEY_VERSIONS = (0, 1)
WITH_EPOCH = 4
"""Version of an offset's value that holds the epoch, as a tagged field."""


class SwitchRespected(Check):
    """switch-respected: nothing uses the metadata epoch before ``crucible.metadata.epoch`` is finalized or after it was
    switched off, and clients that know an epoch go on then (M-14).

    A node whose image has the feature at level 0 sends no UpdateMetadata, and stores offsets in Kafka's own schema,
    without the epoch. From level 0 on no epoch is written, so the one in its image stays. Until some node has seen the
    feature finalized, no offset has an epoch, whoever wrote it.

    A node that has sent clients an epoch sends no smaller one while its process lives. Clients drop metadata with a
    smaller one (M-5), so they would take none any more.

    With ``alone`` the check sees one node only, and judges only what is appended while this node leads. So it does once
    a node has seen the feature finalized: that one may have stored epochs before this one took over the lead.
    """

    guarantee = "switch-respected"
    needs_one_node = True
    acts_on = ((Send, UPDATE_METADATA), METADATA, NoneType)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._alone = around.alone
        self._on = False
        """Some node has seen the feature finalized."""
        self._off: dict[int, tuple[int, int]] = {}
        """For each node with the feature at level 0: since when it was seen so, and the metadata epoch of its image."""
        self._read_to: dict[tuple[int, int, str, int, int], int] = {}
        self._told: dict[int, int] = {}
        """The epoch that each node has told clients last."""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        if event is None:
            self._told.pop(node.broker.node_id, None)
            self._off.pop(node.broker.node_id, None)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == METADATA:
                self._look_at_told(at_us, node.broker.node_id, getattr(effect.body, "metadata_epoch", None))
        self._see(at_us, node)
        since_us, _ = self._off.get(node.broker.node_id, (at_us, -1))
        # It may have sent an update in the event in which it saw level 0.
        if since_us < at_us or not self._on:
            for effect in effects:
                if type(effect) is Send and effect.api_key == UPDATE_METADATA:
                    self.violated(at_us, f"node {node.broker.node_id} sent UpdateMetadata while {FEATURE} was at 0")

    def _see(self, at_us: int, node: "Node") -> None:
        """Notes whether the node's image has the feature, and that its epoch stays while it has not."""
        if not node.listening:
            return  # It has no image yet.
        node_id, image = node.broker.node_id, node.broker.loader.image
        if image.features.get(FEATURE, 0) > 0:
            self._on = True
            self._off.pop(node_id, None)
            return
        _, epoch = self._off.setdefault(node_id, (at_us, image.metadata_epoch))
        if epoch and image.metadata_epoch != epoch:  # 0: it may have read all at once what another node did before.
            self.violated(at_us, f"node {node_id} read metadata epoch {image.metadata_epoch} while {FEATURE} was at 0")
            self._off[node_id] = at_us, image.metadata_epoch

    def _look_at_told(self, at_us: int, node_id: int, epoch: int | None) -> None:
        if epoch is None:
            return  # Only the draft versions of Metadata tell one.
        before = self._told.setdefault(node_id, epoch)
        if epoch < before:
            self.violated(at_us, f"node {node_id} told a client metadata epoch {epoch} after it had told {before}")
        self._told[node_id] = max(before, epoch)

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        self._see(at_us, node)
        node_id = node.broker.node_id
        if node_id not in self._off or OFFSETS_TOPIC not in node.broker.partitions.topic_ids:
            return
        since_us, _ = self._off[node_id]
        for (topic, index), partition in node.broker.partitions.by_name.items():
            if topic == OFFSETS_TOPIC:
                term = (partition.leader_epoch, since_us) if self._alone or self._on else (0, 0)
                self._look(at_us, (node_id, incarnation, f"{topic}-{index}", *term), partition.log)

    def _look(self, at_us: int, key: tuple[int, int, str, int, int], log: PartitionLog) -> None:
        """Reads what was appended since the last look. If other nodes may store epochs, that is what this node has
        appended while it leads and knows level 0."""
        node_id, name = key[0], key[2]
        first = log.log_end_offset if self._alone or self._on else 0
        offset = max(self._read_to.setdefault(key, first), log.log_start_offset)
        self._read_to[key] = max(offset, log.log_end_offset)
        for batch, data in read_batches(log, offset, log.log_end_offset):
            for record in records_in(data):
                if _is_offset(record.key) and _version(record.value) >= WITH_EPOCH:
                    self.violated(
                        at_us,
                        f"node {node_id} wrote an offset with its metadata epoch in {name} {batch.named} while "
                        f"{FEATURE} was at 0",
                    )


def _is_offset(key: bytes | None) -> bool:
    return _version(key) in OFFSET_KEY_VERSIONS


def _version(data: bytes | None) -> int:
    """Returns the version, an int16 at the start of both keys and values."""
    return -1 if data is None or len(data) < 2 else int.from_bytes(data[:2], "big")
