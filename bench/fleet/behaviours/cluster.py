"""Scripts that know the cluster: metadata, the way to a leader, backoff. One connection at a time."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, cast

from bench.fleet.behaviours.bodies import EARLIEST, LIST_OFFSETS, METADATA, list_offsets_request, metadata_request
from bench.fleet.behaviours.protocol import Address, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Script, Steps
from reference_broker.client.metadata_cache import MetadataCache, MetadataUpdate, NodeAddress
from reference_broker.wire.errors import error_name

if TYPE_CHECKING:
    from kio.schema.list_offsets.v10.response import ListOffsetsResponse
    from kio.schema.metadata.v13.response import MetadataResponse


class ClusterScript(Script):
    """``topics``: those that the script is about; metadata requests name them all."""

    def __init__(self, process: str, settings: ClientSettings, random: Random, topics: Sequence[str]) -> None:
        super().__init__(process, settings, random)
        self.topics = tuple(dict.fromkeys(topics))
        self.metadata = MetadataCache()
        self._tried = random.randrange(len(settings.bootstrap))

    @property
    def gives_up(self) -> bool:
        """Checked wherever something is tried again."""
        return self.out_of_time

    def connect_to_node(self, node: NodeAddress) -> Steps[bool]:
        """True with the connection standing (it may have stood already)."""
        address = Address(node.host, node.port)
        if self.connected_to == address:
            return True
        return (yield from self.connect(address, node.node_id))

    def refresh(self) -> Steps[bool]:
        """One attempt to get new metadata, over the connection that stands or to the next node known."""
        if self.connected_to is None and not (yield from self.connect(self._next_address())):
            return False
        operation = self.begin("metadata", self.now.mono_us)
        answer = yield from self.call(METADATA, self.settings.versions.metadata, metadata_request(self.topics))
        if isinstance(answer, str):
            self.end(operation, "fail", answer)
            return False
        self.metadata = self.metadata.apply(MetadataUpdate.of(cast("MetadataResponse", answer.body)))
        self.end(operation, "ok", None, answer)
        return True

    def _next_address(self) -> Address:
        """Known nodes and bootstrap addresses in turn, so that one dead node does not hold a client up."""
        known = dict.fromkeys(Address(each.host, each.port) for each in self.metadata.nodes.values())
        known.update(dict.fromkeys(self.settings.bootstrap))
        addresses = list(known)
        self._tried += 1
        return addresses[self._tried % len(addresses)]

    def find_leaders(self, partitions: Sequence[TopicPartition]) -> Steps[bool]:
        """Until each partition has a leader; False if the script gives up first."""
        while True:
            if (yield from self.refresh()) and not self.metadata.missing(partitions):
                self.succeeded()
                return True
            if self.gives_up:
                return False
            yield from self.back_off()

    def earliest_offsets(self, partitions: Sequence[TopicPartition]) -> Steps[dict[TopicPartition, int]]:
        """Log start offsets of partitions that this connection's node leads; only those that it answered."""
        operation = self.begin("list_offsets", self.now.mono_us)
        body = list_offsets_request(partitions, EARLIEST)
        answer = yield from self.call(LIST_OFFSETS, self.settings.versions.list_offsets, body)
        if isinstance(answer, str):
            self.end(operation, "fail", answer)
            return {}
        found: dict[TopicPartition, int] = {}
        error: str | None = None
        for topic in cast("ListOffsetsResponse", answer.body).topics:
            for each in topic.partitions:
                code = int(each.error_code.value)
                if code == 0:
                    found[TopicPartition(topic.name, int(each.partition_index))] = int(each.offset)
                else:
                    error = error_name(code)
        self.end(operation, "fail" if error else "ok", error, answer)
        return found
