"""A transaction coordinator on another node: its requests are kept, and the test responds."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnTransaction
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.types import TransactionalId
from kio.static.primitive import i32Timedelta

from reference_broker.ports.node_ports import Channel
from reference_broker.replication.tests.timed_ports import TimedPorts
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

NO_THROTTLE = i32Timedelta.parse(timedelta(0))
TopicPartition = tuple[str, int]


class CoordinatorLink:
    """The ports of a verifier. ``requests``: the requests without a response so far, each with its node."""

    def __init__(self, time: TimedPorts) -> None:
        self.time = time
        self.requests: list[tuple[int, Any, Callable[[object], None], Callable[[], None]]] = []
        self.served: list[tuple[object, Callable[[object], None]]] = []

    def now(self) -> Any:
        return self.time.now()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        return self.time.set_timer(deadline_us, fire)

    def send(
        self,
        peer: int,
        channel: Channel,
        api_key: int,
        api_version: int,
        body: object,
        timeout_ms: int,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        assert (channel, api_key, api_version) == (Channel.VERIFICATION, ApiKey.ADD_PARTITIONS_TO_TXN, 5)
        assert timeout_ms > 0
        self.requests.append((peer, body, replied, failed))

    def serve_locally(self, api_key: int, body: object, respond: Callable[[object], None]) -> None:
        assert api_key == ApiKey.ADD_PARTITIONS_TO_TXN
        self.requests.append((1, body, respond, lambda: None))

    # the coordinator

    @property
    def transactions(self) -> list[AddPartitionsToTxnTransaction]:
        """Return the transactions of the only request."""
        ((_, body, _, _),) = self.requests
        return list(body.transactions)

    def respond(
        self, errors: Mapping[TopicPartition, ErrorCode] | None = None, top: ErrorCode = ErrorCode.none
    ) -> None:
        """Respond to the oldest request. Partitions without an error are verified, or added."""
        _, body, replied, _ = self.requests.pop(0)
        found = errors or {}
        results = tuple(
            AddPartitionsToTxnResult(
                transactional_id=TransactionalId(transaction.transactional_id),
                topic_results=tuple(
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index,
                                partition_error_code=found.get((topic.name, index), ErrorCode.none),
                            )
                            for index in topic.partitions
                        ),
                    )
                    for topic in transaction.topics
                ),
            )
            for transaction in body.transactions
        )
        results = () if top else results
        replied(AddPartitionsToTxnResponse(throttle_time=NO_THROTTLE, error_code=top, results_by_transaction=results))

    def lose(self) -> None:
        """Break the channel."""
        self.requests.pop(0)[3]()
