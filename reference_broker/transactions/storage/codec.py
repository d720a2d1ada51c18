"""Keys and values of ``__transaction_state`` <-> bytes, in Kafka's layouts (TransactionLogKey, TransactionLogValue).

The schemas are those of transaction-coordinator/src/main/resources. Each begins with its version (int16). Keys have
version 0. Values are written in version 1, which is flexible, from ``transaction.version`` 1 on, and else in version 0.
Version 1 has tagged fields: 0 the previous producer ID, 1 the next one, 2 the client's ``transaction.version``. Tag 3
(KIP-939) is not written here.
"""

from struct import Struct
from typing import Final

from reference_broker.coordination.record_fields import DamagedRecord, FieldReader, FieldWriter
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.markers.marker import TopicPartition
from reference_broker.transactions.state.states import IDS, STATE_IDS, TransactionState
from reference_broker.transactions.state.transaction import Transaction
from reference_broker.wire.decoding import primitive_reader

KEY: Final = 0
PLAIN_VALUE: Final = 0
FLEXIBLE_VALUE: Final = 1
FLEXIBLE_FROM: Final = 1
"""The finalized ``transaction.version`` from which values are written in their flexible version."""

_PREVIOUS_ID: Final = 0
_NEXT_ID: Final = 1
_CLIENT_VERSION: Final = 2
_WHO_AND_STATE = Struct(">qhib")
_TIMES = Struct(">qq")
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_TAGS: Final = {
    _PREVIOUS_ID: primitive_reader("int64", flexible=True, nullable=False),
    _NEXT_ID: primitive_reader("int64", flexible=True, nullable=False),
    _CLIENT_VERSION: primitive_reader("int16", flexible=True, nullable=False),
}


def transaction_key(transactional_id: str) -> bytes:
    """TransactionLogKey 0. Raises TextTooLong."""
    out = FieldWriter(KEY)
    out.string(transactional_id)
    return bytes(out.data)


def read_key(data: bytes) -> str | None:
    """Returns the transactional ID, or None for a key of another kind. Raises DamagedRecord."""
    fields = FieldReader(data)
    return fields.string() if fields.version == KEY else None


def transaction_value(transaction: Transaction, feature_level: int) -> bytes:
    """TransactionLogValue, in the version that the finalized ``transaction.version`` allows."""
    version = FLEXIBLE_VALUE if feature_level >= FLEXIBLE_FROM else PLAIN_VALUE
    out = FieldWriter(version, flexible_from=FLEXIBLE_VALUE)
    who = transaction.producer_id, transaction.producer_epoch
    out.numbers(_WHO_AND_STATE, *who, transaction.timeout_ms, IDS[transaction.state])
    _write_partitions(out, transaction, is_flexible=version == FLEXIBLE_VALUE)
    out.numbers(_TIMES, transaction.updated_ms, transaction.started_ms)
    if version == FLEXIBLE_VALUE:
        out.tagged(_tags_of(transaction))
    return bytes(out.data)


def _write_partitions(out: FieldWriter, transaction: Transaction, *, is_flexible: bool) -> None:
    if transaction.state is TransactionState.EMPTY:
        out.null()
        return
    by_topic: dict[str, list[int]] = {}
    for topic, index in transaction.partitions:
        by_topic.setdefault(topic, []).append(index)
    out.length(len(by_topic))
    for topic, indexes in by_topic.items():
        out.string(topic)
        out.length(len(indexes))
        for index in indexes:
            out.int32(index)
        if is_flexible:
            out.tagged({})


def _tags_of(transaction: Transaction) -> dict[int, bytes]:
    tags = {}
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID] = _INT64.pack(transaction.previous_producer_id)
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_ID] = _INT64.pack(transaction.next_producer_id)
    if transaction.client_version:
        tags[_CLIENT_VERSION] = _INT16.pack(transaction.client_version)
    return tags


def read_transaction(transactional_id: str, data: bytes) -> Transaction:
    """Reads TransactionLogValue 0 and 1. Raises DamagedRecord, also for what no coordinator writes: markers could not
    be sent of it, or a later step could not be written."""
    fields = FieldReader(data, flexible_from=FLEXIBLE_VALUE, greatest=FLEXIBLE_VALUE)
    producer_id, epoch, timeout_ms, state = fields.int64(), fields.int16(), fields.int32(), STATE_IDS.get(fields.int8())
    if state in (None, TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise DamagedRecord(f"transactional ID {transactional_id} is in no state that is ever written")
    if epoch < 0:
        raise DamagedRecord(f"transactional ID {transactional_id} has producer epoch {epoch}")
    partitions = _read_partitions(fields)
    updated_ms, started_ms = fields.int64(), fields.int64()
    tags = fields.tagged(_TAGS)
    found = Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        timeout_ms=timeout_ms,
        updated_ms=updated_ms,
        state=state,
        producer_epoch=epoch,
        previous_producer_id=tags.get(_PREVIOUS_ID, NO_PRODUCER_ID),
        next_producer_id=tags.get(_NEXT_ID, NO_PRODUCER_ID),
        partitions=partitions,
        started_ms=started_ms,
        client_version=tags.get(_CLIENT_VERSION, 0),
    )
    try:
        found.validate()
    except AssertionError as wrong:
        raise DamagedRecord(str(wrong)) from None
    return found


def _read_partitions(fields: FieldReader) -> dict[TopicPartition, None]:
    found: dict[TopicPartition, None] = {}
    for _ in range(fields.nullable_length() or 0):
        topic = fields.string()
        for _ in range(fields.length()):
            index = fields.int32()
            if index < 0:
                raise DamagedRecord(f"a transaction has partition {index} of topic {topic}")
            found[topic, index] = None
        fields.tagged({})
    return found
