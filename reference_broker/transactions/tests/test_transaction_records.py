"""Records of transactions: Kafka's bytes, a round trip of each record, damage is rejected."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.transactions.transaction_metadata import TransactionState, TxnTransitMetadata
from reference_broker.transactions.transaction_state_manager import (
    read_key,
    read_transaction,
    transaction_key,
    transaction_value,
)

NEVER_WRITTEN = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
WRITTEN = [each for each in TransactionState if each not in NEVER_WRITTEN]
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@st.composite
def transactions(draw: st.DrawFn) -> TxnTransitMetadata:
    state = draw(st.sampled_from(WRITTEN))
    partition = st.tuples(st.text(st.characters(codec="ascii"), max_size=8), INT32)
    added = [] if state is TransactionState.EMPTY else draw(st.lists(partition, max_size=5))
    return TxnTransitMetadata(
        "x",
        draw(INT64),
        draw(INT32),
        draw(INT64),
        state,
        draw(st.integers(0, 2**15 - 1)),
        previous_producer_id=draw(st.integers(-1, 2**63 - 1)),
        next_producer_id=draw(st.integers(-1, 2**63 - 1)) if state in PREPARED else -1,
        partitions=dict.fromkeys(added),
        started_ms=draw(INT64),
        client_version=draw(st.integers(0, 2)),
    )


@given(transactions())
@pytest.mark.clause("TransactionLogTest.shouldReadWriteMessages")
@pytest.mark.clause("TransactionLogTest.shouldRoundTripPreviousAndNextProducerIds")
@pytest.mark.clause("TransactionLogTest.testDeserializeHighestSupportedTransactionLogValue")
def test_record_round_trip(one: TxnTransitMetadata) -> None:
    assert read_transaction("x", transaction_value(one, 1)) == one


@given(transactions())
@pytest.mark.clause("TransactionLogTest.shouldNotPersistProducerIdsAtVersion0")
def test_first_version_has_no_tagged_fields(one: TxnTransitMetadata) -> None:
    transaction = read_transaction("x", transaction_value(one, 0))
    assert (transaction.previous_producer_id, transaction.next_producer_id, transaction.client_version) == (-1, -1, 0)
    assert (transaction.state, transaction.partitions) == (one.state, one.partitions)


@pytest.mark.clause("TransactionLogTest.testReadReturnsUnknownKeyVersionForInvalidKey")
def test_keys_have_kafka_bytes() -> None:
    assert transaction_key("tx") == b"\0\0\0\2tx"
    assert read_key(b"\0\0\0\2tx") == "tx"
    assert read_key(b"\0\1\0\2tx") is None


ONE = TxnTransitMetadata(
    "x",
    7,
    60_000,
    9,
    TransactionState.ONGOING,
    3,
    previous_producer_id=6,
    partitions={("t", 1): None, ("t", 2): None},
    started_ms=8,
    client_version=2,
)


@pytest.mark.clause("TransactionLogTest.testSerializeTransactionLogValueToHighestNonFlexibleVersion")
@pytest.mark.clause("TransactionLogTest.testSerializeTransactionLogValueToFlexibleVersion")
def test_values_have_kafka_bytes() -> None:
    head = b"\0\0\0\0\0\0\0\7" + b"\0\3" + b"\0\0\xea\x60" + b"\1"
    times = b"\0\0\0\0\0\0\0\x09" + b"\0\0\0\0\0\0\0\x08"
    plain = b"\0\0" + head + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + b"\0\0\0\1\0\0\0\2" + times
    assert transaction_value(ONE, 0) == plain
    tags = b"\2" + b"\0\x08" + b"\0\0\0\0\0\0\0\6" + b"\2\2" + b"\0\2"
    flexible = b"\0\1" + head + b"\2" + b"\2t" + b"\3" + b"\0\0\0\1\0\0\0\2" + b"\0" + times + tags
    assert transaction_value(ONE, 2) == flexible


def test_empty_transaction_has_null_partitions() -> None:
    empty = TxnTransitMetadata("x", 7, 60_000, 9, producer_epoch=0)
    assert transaction_value(empty, 0)[17:21] == b"\xff\xff\xff\xff"
    assert transaction_value(empty, 2)[17:18] == b"\0"


@pytest.mark.parametrize("state", [6, 7, 8, 127])
def test_invalid_state_is_damage(state: int) -> None:
    data = bytearray(transaction_value(ONE, 2))
    data[16] = state
    with pytest.raises(DamagedRecord):
        read_transaction("x", bytes(data))


@given(st.integers(0, 60))
def test_truncated_value_is_damage(length: int) -> None:
    whole = transaction_value(ONE, 2)
    if length < len(whole):
        with pytest.raises(DamagedRecord):
            read_transaction("x", whole[:length])


@pytest.mark.parametrize(
    "changes",
    [
        {"producer_epoch": -1},
        {"client_version": 300},
        {"client_version": -1},
        {"partitions": {("t", -9): None}},
        {"state": TransactionState.PREPARE_COMMIT, "next_producer_id": -9},
    ],
)
def test_inconsistent_values_are_damage(changes: dict[str, Any]) -> None:
    """A node that accepted the record would end each time that it loads the partition."""
    with pytest.raises(DamagedRecord):
        read_transaction("x", transaction_value(ONE._replace(**changes), 2))


@pytest.mark.clause("TransactionLogTest.testDeserializeFutureTransactionLogValue")
def test_unknown_tagged_fields_are_skipped() -> None:
    later = b"\2" + b"\x64\4\3foo" + b"\x65\4\0\0\x0f\xa0"
    head = b"\0\1" + b"\0\0\0\0\0\0\x03\xe8" + b"\0\x64" + b"\0\0\x03\xe8" + b"\4"
    partitions = b"\2" + b"\6topic" + b"\2" + b"\0\0\0\1" + later
    transaction = read_transaction("x", head + partitions + b"\0\0\0\0\0\0\x07\xd0" + b"\0\0\0\0\0\0\x0b\xb8" + later)
    complete = TransactionState.COMPLETE_COMMIT
    assert transaction == TxnTransitMetadata(
        "x", 1000, 1000, 2000, complete, 100, partitions={("topic", 1): None}, started_ms=3000
    )


@pytest.mark.clause("TransactionLogTest.testReadReturnsUnknownValueVersionForInvalidValue")
def test_value_of_unknown_version_is_damage() -> None:
    with pytest.raises(DamagedRecord):
        read_transaction("x", b"\x7f\xff" + transaction_value(ONE, 2)[2:])
