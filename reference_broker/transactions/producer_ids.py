"""The block of producer IDs that this node may give out. No ID is ever given out twice, not even after a restart.

IDs come from blocks of 1000. The active controller commits a block before it gives it away.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from kio.schema.types import BrokerId
from kio.static.primitive import i64

from reference_broker.controller.planning.brokers import BLOCK_SIZE
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import Error, ErrorCode

NO_BLOCK = ErrorCode.coordinator_load_in_progress
"""Kafka's error while it has no block of IDs."""

ProducerIdCallback: TypeAlias = Callable[[int | Error], None]


class ControllerRequests(Protocol):
    """The requests of this node to the active controller (``controller.controller.NodeToControllerChannelManager``)."""

    def send_request(
        self,
        api_key: int,
        api_version: int,
        body: object,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None: ...


@dataclass(slots=True)
class ProducerIdManager:
    """The producer IDs that this node may assign (Kafka's RPCProducerIdManager)."""

    node_id: int
    channel: Callable[[], ControllerRequests]
    """Returns this node's channel to the controller."""
    broker_epoch: Callable[[], int]
    """Returns this node's current broker epoch."""
    next_id: int = 0
    """The first free ID. A block is used only once its record is committed."""
    end: int = 0
    """The end of the block, exclusive."""
    waiting: deque[ProducerIdCallback] = field(default_factory=deque)
    """The callbacks of pending requests for an ID, while the block is empty."""
    requested: bool = False
    """A request for the next block is in flight."""

    def take(self) -> int | None:
        """Return the next free ID. If the block is used up, return None and request the next block."""
        if self.next_id == self.end:  # Decision producer-id-block-used-up
            self._request_block()
            return None
        self.next_id += 1
        return self.next_id - 1

    def generate(self, callback: ProducerIdCallback) -> None:
        """Call ``callback`` with an ID, now or when a block comes, or with COORDINATOR_LOAD_IN_PROGRESS without a
        controller."""
        if self.next_id < self.end:
            self.next_id += 1
            callback(self.next_id - 1)
        else:
            self.waiting.append(callback)
            self._request_block()

    def _request_block(self) -> None:
        """Request the next block from the active controller. Without a response, pending requests fail."""
        from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest

        if self.requested:
            return
        self.requested = True
        body = AllocateProducerIdsRequest(broker_id=BrokerId(self.node_id), broker_epoch=i64(self.broker_epoch()))
        version = VERSIONS[ApiKey.ALLOCATE_PRODUCER_IDS][1]
        self.channel().send_request(
            ApiKey.ALLOCATE_PRODUCER_IDS, version, body, self._replied, lambda: self._refuse(NO_BLOCK)
        )

    def _replied(self, response: object) -> None:
        from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse

        assert isinstance(response, AllocateProducerIdsResponse), f"producer IDs: got {type(response).__name__}"
        if not response.error_code:
            self._refill(int(response.producer_id_start))
        else:
            self._refuse(_client_error(response.error_code))

    def _refill(self, first: int) -> None:
        """Take a new block that starts at ``first``, and serve the pending requests in their order."""
        assert first >= self.end, f"producer IDs from {first} on were given out before"
        self.next_id, self.end, self.requested = first, first + BLOCK_SIZE, False
        while self.waiting and self.next_id < self.end:
            callback = self.waiting.popleft()
            self.next_id += 1
            callback(self.next_id - 1)
        if self.waiting:
            self._request_block()

    def _refuse(self, error: Error) -> None:
        self.requested = False
        waiting, self.waiting = self.waiting, deque()
        for callback in waiting:
            callback(error)


def _client_error(error: Error) -> Error:
    """Clients can handle a full disk, but no errors of controllers."""
    return error if error is ErrorCode.kafka_storage_error else NO_BLOCK
