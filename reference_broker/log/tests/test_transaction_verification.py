"""The first batch of a transaction in a log needs the guard of its verification (KIP-890)."""

from dataclasses import replace

import pytest

from reference_broker.log.appending import BatchOrigin
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import NOW, START_MS, batch_of, opened
from reference_broker.log.transaction_verification import VerificationGuard
from reference_broker.log.unified_log import RecordsRefused, UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import read_header
from reference_broker.records.tests.markers import build_marker
from reference_broker.wire.errors import Error, ErrorCode

DEMANDED = LogConfig(transaction_verification_enable=True)


@pytest.fixture
def log() -> UnifiedLog:
    return opened(MemoryDisk(), DEMANDED)


def batch(sequence: int = 0, epoch: int = 0, producer: int = 7) -> bytes:
    return batch_of(1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)


def waits(log: UnifiedLog, data: bytes, *, raises_epoch: bool = False) -> VerificationGuard | None:
    header = read_header(data)
    return log.verification.begin(
        log.producers.by_id.get(header.producer_id), header, raises_epoch=raises_epoch, wall_ms=START_MS
    )


def error_of(log: UnifiedLog, data: bytes, guard: VerificationGuard | None) -> Error:
    before = log.log_end_offset
    with pytest.raises(RecordsRefused) as refused:
        log.append(NOW, data, 0, guard=guard)
    assert log.log_end_offset == before
    return refused.value.error


def end(log: UnifiedLog, epoch: int = 0) -> None:
    marker = build_marker(commit=True, producer_id=7, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=START_MS)
    log.append(NOW, marker, 0, origin=BatchOrigin.BROKER)


@pytest.mark.clause("ProducerStateManagerTest.testEntryForVerification")
def test_concurrent_verifications_share_guard_until_first_append(log: UnifiedLog) -> None:
    guard = waits(log, batch())
    assert guard is not None
    assert waits(log, batch()) is guard
    log.append(NOW, batch(), 0, guard=guard)
    assert log.verification.guards == {}
    assert waits(log, batch(1)) is None
    log.append(NOW, batch(1), 0)


@pytest.mark.clause("ProducerStateManagerTest.testSequenceAndEpochInVerificationEntry")
def test_lowest_sequence_of_newest_epoch_is_appended_first(log: UnifiedLog) -> None:
    guard = waits(log, batch(1))
    assert guard is not None
    for sequence, epoch, lowest in ((1, 0, (1, 0)), (0, 0, (0, 0)), (5, 0, (0, 0)), (2, 1, (2, 1)), (0, 0, (2, 1))):
        assert waits(log, batch(sequence, epoch)) is guard
        assert (guard.lowest_sequence, guard.epoch) == lowest


@pytest.mark.clause("UnifiedLogTest.testEnablingVerificationWhenRequestIsAtLogLayer")
def test_transaction_does_not_start_without_guard(log: UnifiedLog) -> None:
    assert error_of(log, batch(), None) is ErrorCode.invalid_txn_state
    guard = waits(log, batch())
    assert error_of(log, batch(), None) is ErrorCode.invalid_txn_state
    log.append(NOW, batch(), 0, guard=guard)


@pytest.mark.clause("UnifiedLogTest.testDisabledVerificationClearsVerificationGuard")
@pytest.mark.parametrize("raises_epoch", [False, True])
def test_disabled_verification_needs_no_guard_and_voids_pending_one(log: UnifiedLog, raises_epoch: bool) -> None:
    waits(log, batch(), raises_epoch=raises_epoch)
    log.config = replace(DEMANDED, transaction_verification_enable=False)
    log.append(NOW, batch(), 0)
    assert log.verification.guards == {}
    assert log.producers.by_id[7].current_txn_first_offset == 0


@pytest.mark.clause("ProducerStateManagerTest.testThrowOutOfOrderSequenceWithVerificationSequenceCheck")
@pytest.mark.parametrize("is_demanded", [True, False])
def test_sequence_is_checked_with_disabled_verification(log: UnifiedLog, is_demanded: bool) -> None:
    guard = waits(log, batch())
    log.config = replace(DEMANDED, transaction_verification_enable=is_demanded)
    assert error_of(log, batch(4), guard) is ErrorCode.out_of_order_sequence_number
    assert log.verification.guards == {7: guard}


def test_guard_of_earlier_verification_is_invalid(log: UnifiedLog) -> None:
    earlier = waits(log, batch())
    end(log)
    later = waits(log, batch())
    assert later is not earlier
    assert error_of(log, batch(), earlier) is ErrorCode.invalid_txn_state
    log.append(NOW, batch(), 0, guard=later)


def test_guard_is_of_one_producer(log: UnifiedLog) -> None:
    guard = waits(log, batch())
    assert error_of(log, batch(producer=8), guard) is ErrorCode.invalid_txn_state


def test_transaction_of_newer_epoch_needs_verification(log: UnifiedLog) -> None:
    log.append(NOW, batch(), 0, guard=waits(log, batch()))
    assert waits(log, batch(0, epoch=1)) is not None
    assert error_of(log, batch(0, epoch=1), None) is ErrorCode.invalid_txn_state


def test_stale_epoch_is_checked_before_guard(log: UnifiedLog) -> None:
    end(log, epoch=2)
    with pytest.raises(Exception, match="has epoch 2"):
        waits(log, batch(epoch=1))
    assert error_of(log, batch(epoch=1), None) is ErrorCode.invalid_producer_epoch


def test_replicated_batch_needs_no_guard_and_voids_one(log: UnifiedLog) -> None:
    waits(log, batch())
    log.append_replicated(NOW, batch())
    assert log.verification.guards == {}
    assert log.producers.by_id[7].current_txn_first_offset == 0


def test_duplicate_needs_no_guard(log: UnifiedLog) -> None:
    log.append(NOW, batch(), 0, guard=waits(log, batch()))
    end(log)
    assert log.append(NOW, batch(), 0).duplicate
