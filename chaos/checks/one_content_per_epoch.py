from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Reply
from reference_broker.core.events import Closed, Event, Request
from reference_broker.metadata.cache import MetadataCache

if TYPE_CHECKING:
    from reference_broker.core.node import Node

Content: TypeAlias = tuple[object, ...]
METADATA, FIRST_DRAFT = 3, 1000
"""Kafka's API key, and the first version whose answer has the epoch (D-1)."""


class OneContentPerEpoch(Check):
    """one-content-per-epoch: nodes that tell clients a metadata epoch tell them the same content with it.

    After each new epoch at a node its whole cache is compared with the first node's. In the simulator the cache is
    small. An answer to a client must carry the epoch of what the node tells (M-4). Physical: the answer is made in
    slices, so that may be any epoch from the request on. While a controller has told the node nothing, there is no
    epoch to compare.

    A live node's process sees no other node. So it judges the answers only.
    """

    guarantee = "one-content-per-epoch"
    needs_one_node = True
    acts_on = (METADATA, Closed)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._content: dict[int, tuple[int, Content]] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        self._asked: dict[tuple[int, int], int] = {}
        """The epoch that a node had when a client asked, by node and connection."""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id, epoch = node.broker.node_id, node.broker.metadata.metadata_epoch
        if type(event) is Request and event.api_key == METADATA and event.api_version >= FIRST_DRAFT:
            self._asked[node_id, event.connection] = epoch
        elif type(event) is Closed:
            self._asked.pop((node_id, event.connection), None)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == METADATA and effect.api_version >= FIRST_DRAFT:
                since = self._asked.pop((node_id, effect.connection), epoch)
                self._told(at_us, node_id, since, epoch, effect.body)

    def _told(self, at_us: int, node_id: int, since: int, epoch: int, body: object) -> None:
        told = getattr(body, "metadata_epoch", -1)
        if since >= 0 and epoch >= 0 and not since <= told <= epoch:
            self.violated(at_us, f"node {node_id} has metadata epoch {epoch} and told a client {told}")

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if self.around.alone:
            return
        cache, node_id = node.broker.metadata, node.broker.node_id
        # M-11: -1 means that no controller has told the node anything.
        if cache.metadata_epoch < 0 or self._seen.get(node_id) == (incarnation, cache.metadata_epoch):
            return
        self._seen[node_id] = (incarnation, cache.metadata_epoch)
        content = content_of(cache)
        first, known = self._content.setdefault(cache.metadata_epoch, (node_id, content))
        if known != content:
            differs = [one for one, other in zip(known, content, strict=False) if one != other][:1]
            self.violated(
                at_us,
                f"nodes {first} and {node_id} tell different content with metadata epoch {cache.metadata_epoch}: "
                f"{differs or (len(known), len(content))}",
            )


def content_of(cache: MetadataCache) -> Content:
    """Returns what a Metadata answer is made of, in a fixed order."""
    topics = (
        (name, topic.topic_id, index, each.leader, each.leader_epoch, each.replicas, each.isr)
        for name, topic in sorted(cache.topics.items())
        for index, each in enumerate(topic.partitions)
    )
    return (tuple(broker.broker_id for broker in cache.live_brokers()), cache.controller_epoch, *topics)
