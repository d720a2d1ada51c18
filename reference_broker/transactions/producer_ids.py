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

COME_AGAIN = ErrorCode.coordinator_load_in_progress
"""As Kafka answers while it has no block of IDs."""

Given: TypeAlias = Callable[[int | Error], None]


class AsksController(Protocol):
    """How this node asks the active controller (``controller.controller.ControllerChannel``)."""

    def ask(
        self,
        api_key: int,
        api_version: int,
        body: object,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None: ...


@dataclass(slots=True)
class ProducerIds:
    """IDs from ``next_id`` up to ``end`` (excluded) are free. A block is used only once its record is durable.

    ``waiting`` are those who asked while the block was empty. ``requested`` says that a new block is on its way.
    ``channel`` and ``broker_epoch`` return how and as whom this node asks for it.
    """

    node_id: int
    channel: Callable[[], AsksController]
    broker_epoch: Callable[[], int]
    next_id: int = 0
    end: int = 0
    waiting: deque[Given] = field(default_factory=deque)
    requested: bool = False

    def take(self) -> int | None:
        """Return the next free ID. Where the block is used up it returns None, and asks for the next block."""
        if self.next_id == self.end:
            self._request_block()
            return None
        self.next_id += 1
        return self.next_id - 1

    def give(self, given: Given) -> None:
        """Give an ID, now or when a block comes. Without a controller it gives COORDINATOR_LOAD_IN_PROGRESS."""
        if self.next_id < self.end:
            self.next_id += 1
            given(self.next_id - 1)
        else:
            self.waiting.append(given)
            self._request_block()

    def _request_block(self) -> None:
        """Asks the active controller for the next block. Without an answer everyone who waits is told to come again."""
        from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest

        if self.requested:
            return
        self.requested = True
        body = AllocateProducerIdsRequest(broker_id=BrokerId(self.node_id), broker_epoch=i64(self.broker_epoch()))
        version = VERSIONS[ApiKey.ALLOCATE_PRODUCER_IDS][1]
        self.channel().ask(ApiKey.ALLOCATE_PRODUCER_IDS, version, body, self._replied, lambda: self._refuse(COME_AGAIN))

    def _replied(self, answer: object) -> None:
        from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse

        assert isinstance(answer, AllocateProducerIdsResponse), f"producer IDs: answered by {type(answer).__name__}"
        if not answer.error_code:
            self._refill(int(answer.producer_id_start))
        else:
            self._refuse(_told(answer.error_code))

    def _refill(self, first: int) -> None:
        """Take a new block that starts at ``first``, and serve the pending requests in their order."""
        assert first >= self.end, f"producer IDs from {first} on were given out before"
        self.next_id, self.end, self.requested = first, first + BLOCK_SIZE, False
        while self.waiting and self.next_id < self.end:
            given = self.waiting.popleft()
            self.next_id += 1
            given(self.next_id - 1)
        if self.waiting:
            self._request_block()

    def _refuse(self, error: Error) -> None:
        self.requested = False
        waiting, self.waiting = self.waiting, deque()
        for given in waiting:
            given(error)


def _told(error: Error) -> Error:
    """A client knows what to do about a full disk, not about controllers."""
    return error if error is ErrorCode.kafka_storage_error else COME_AGAIN
