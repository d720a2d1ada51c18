"""DescribeTransactions: returns the state of transactional IDs.

* In PrepareCommit and PrepareAbort the partitions are those without a marker.
* An unknown ID is TRANSACTIONAL_ID_NOT_FOUND. An empty one is INVALID_REQUEST.
* Unlike Kafka: an ID that is named twice is described once.

KIPs: 664.
"""

from typing import cast

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse, TopicData, TransactionState
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import TZAware, i16, i32, i32Timedelta

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.coordination.partitioner import CHARACTERS_PER_US, KEY_COST_US
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.transactions.transaction_metadata import PREPARED, TransactionMetadata
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.schema import EPOCH, MILLISECOND

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970."""


def handle(broker: Broker, call: Call, body: DescribeTransactionsRequest) -> None:
    """In the request's order, each ID once."""
    respond_in_slices(broker, call, _response(broker, body))


def _response(broker: Broker, body: DescribeTransactionsRequest) -> Sliced[DescribeTransactionsResponse]:
    work = Budget(LOOKUP_US_PER_SLICE)
    states: list[TransactionState] = []
    for transactional_id in dict.fromkeys(body.transactional_ids):
        if work.spend(KEY_COST_US + len(transactional_id) // CHARACTERS_PER_US):
            yield
        metadata = broker.transactions.find_metadata(transactional_id)
        if isinstance(metadata, Error):
            states.append(_unknown(transactional_id, metadata))
            continue
        states.append(_described(transactional_id, metadata))
        work.spend(len(metadata.current.partitions))
    return DescribeTransactionsResponse(throttle_time=NO_THROTTLE, transaction_states=tuple(states))


API = Api.of(DescribeTransactionsRequest, handle)


def _described(transactional_id: TransactionalId, metadata: TransactionMetadata) -> TransactionState:
    current = metadata.current
    by_topic: dict[str, list[i32]] = {}
    for topic, index in metadata.partitions_without_marker if current.state in PREPARED else current.partitions:
        by_topic.setdefault(topic, []).append(i32(index))
    return TransactionState(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=current.state.value,
        transaction_timeout=i32Timedelta.parse(current.timeout_ms * MILLISECOND),
        transaction_start_time=_time(current.started_ms),
        producer_id=ProducerId(current.producer_id),
        producer_epoch=i16(current.producer_epoch),
        topics=tuple(
            TopicData(topic=TopicName(topic), partitions=tuple(indexes)) for topic, indexes in by_topic.items()
        ),
    )


def _time(time_ms: int) -> TZAware:
    """Return the time. It is -1 for an ID that had no transaction yet. A damaged record may have a time that no
    calendar has."""
    return cast(TZAware, EPOCH + min(max(time_ms, -1), LATEST_MS) * MILLISECOND)


def _unknown(transactional_id: TransactionalId, error: Error) -> TransactionState:
    return TransactionState(
        error_code=ErrorCode(error),
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=NO_THROTTLE,
        transaction_start_time=_time(0),
        producer_id=ProducerId(0),
        producer_epoch=i16(0),
        topics=(),
    )
