from collections.abc import Iterator
from typing import TYPE_CHECKING

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reference_broker.core.events import Event
from reference_broker.metadata.image import MetadataImage, PartitionImage

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FEATURE = "eligible.leader.replicas.version"
MIN_ISR = "min.insync.replicas"
TOPIC, BROKER = 2, 4
"""Types of resources that have settings (ConfigResource.Type)."""
ALL_BROKERS = ""


class MinIsrKept(Check):
    """min-isr-kept: where eligible leader replicas are kept, the whole cluster means one min.insync.replicas.

    KIP-966: while ``eligible.leader.replicas.version`` is 1 the cluster has a min.insync.replicas, no broker has one of
    its own, and a change of it clears the eligible leader replicas that were kept by the old one (E-8).

    One excuse: a partition whose ISR is empty keeps its list, since only who is in it could lead without loss (E-3).

    Compares each image that a node publishes with the one before.
    """

    guarantee = "min-isr-kept"
    needs_one_node = True

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._images: dict[int, MetadataImage] = {}

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        node_id = node.broker.node_id
        if event is None:
            self._images.pop(node_id, None)
        if not node.listening:
            return
        image, before = node.broker.replica.loader.image, self._images.get(node_id)
        if image is before:
            return
        self._images[node_id] = image
        if not image.features.get(FEATURE):
            return
        if before is None or image.configs is not before.configs or not before.features.get(FEATURE):
            self._settings(at_us, node_id, image)
        if before is not None and before.features.get(FEATURE) and image.configs is not before.configs:
            for name in _changed(before, image):
                self._cleared(at_us, node_id, before, image, name)

    def _settings(self, at_us: int, node_id: int, image: MetadataImage) -> None:
        if MIN_ISR not in image.configs.get((BROKER, ALL_BROKERS), {}):
            self.violated(at_us, f"node-{node_id} published metadata in which the cluster has no {MIN_ISR}")
        for (kind, name), settings in image.configs.items():
            if kind == BROKER and name != ALL_BROKERS and MIN_ISR in settings:
                self.violated(at_us, f"node-{node_id} published metadata in which broker {name} has its own {MIN_ISR}")

    def _cleared(self, at_us: int, node_id: int, before: MetadataImage, image: MetadataImage, name: str) -> None:
        """``name`` is the topic whose setting has changed, or empty for that of the cluster."""
        old = dict(_partitions(before, name))
        for key, partition in _partitions(image, name):
            known = old.get(key)
            stays = known is not None and known.partition_epoch == partition.partition_epoch
            if stays and partition.isr and (partition.elr or partition.last_known_elr):
                kept = f"{key[0]}-{key[1]} kept the eligible leader replicas {partition.elr}"
                self.violated(at_us, f"node-{node_id}: {kept}, although {MIN_ISR} of {name or 'the cluster'} changed")


def _changed(before: MetadataImage, image: MetadataImage) -> Iterator[str]:
    """Yields the topics whose setting has changed, and an empty name for the cluster's."""
    for kind, name in dict.fromkeys([*before.configs, *image.configs]):
        is_meant = (kind == TOPIC and name in before.topics) or (kind, name) == (BROKER, ALL_BROKERS)
        old, new = (each.configs.get((kind, name), {}).get(MIN_ISR) for each in (before, image))
        if is_meant and old != new:
            yield name


def _partitions(image: MetadataImage, name: str) -> Iterator[tuple[tuple[str, int], PartitionImage]]:
    for topic in image.topics.values():
        if name in ("", topic.name):
            for index, partition in enumerate(topic.partitions):
                yield (topic.name, index), partition
