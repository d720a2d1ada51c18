"""Offsets in a transaction: its coordinator verifies first, and a marker in between invalidates the verification."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.appending import BatchOrigin
from reference_broker.log.config import LogConfig
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TRANSACTION_TOPIC
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.records.record import Record, build
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from reference_broker.transactions.offsets_verification import OffsetsVerifier
from reference_broker.transactions.tests.coordinator_link import CoordinatorLink
from reference_broker.transactions.tests.marker_world import MarkerWorld
from reference_broker.wire.errors import Error, ErrorCode

OFFSETS = (OFFSETS_TOPIC, 3)
VERIFIES, ABORTABLE, ADDS = 3, 4, 5


@dataclass(frozen=True)
class Committing:
    api_version: int = ABORTABLE
    transactional_id: str = "id"
    producer_id: int = 7
    producer_epoch: int = 0


class OffsetsWorld(MarkerWorld):
    """Node 1 leads the partition of the offsets; node 2 coordinates the transaction."""

    def __init__(self, demands: bool = True) -> None:
        super().__init__()
        self.link = CoordinatorLink(self)
        ports: Any = self.link
        config = BrokerConfig.parse({"transaction.partition.verification.enable": str(demands).lower()})
        state = PartitionImage((2,), (2,), 2, 0, 0)
        topics = {TRANSACTION_TOPIC: TopicImage(TRANSACTION_TOPIC, b"s" * 16, (state,))}
        image = MetadataImage(brokers=self.controller.image.brokers, topics=topics)
        verifier = AddPartitionsToTxnManager(ports, 1, lambda: image, self.link.serve_locally, self.metrics, 30_000)
        self.offsets = self.lead_offsets(3)
        self.offsets.log.config = LogConfig(transaction_verification_enable=demands)
        self.verifier = OffsetsVerifier(ports, lambda: config, verifier)

    def verify(self, **of: Any) -> list[Error]:
        errors: list[Error] = []
        self.verifier.verify(self.offsets, replace(Committing(), **of), errors.append)
        return errors


@pytest.fixture
def world() -> OffsetsWorld:
    return OffsetsWorld()


@pytest.mark.parametrize("version", [0, VERIFIES, ABORTABLE, ADDS])
def test_offsets_partition_is_verified_by_coordinator(world: OffsetsWorld, version: int) -> None:
    errors = world.verify(api_version=version)
    (request,) = world.link.transactions
    assert [(topic.name, topic.partitions) for topic in request.topics] == [(OFFSETS_TOPIC, (3,))]
    assert (request.transactional_id, request.producer_id, request.verify_only) == ("id", 7, version < ADDS)
    assert errors == []
    world.link.respond()
    assert errors == [ErrorCode.none]


@pytest.mark.parametrize(
    ("version", "error", "returned"),
    [
        (VERIFIES, ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (ABORTABLE, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (ADDS, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (ADDS, ErrorCode.concurrent_transactions, ErrorCode.concurrent_transactions),
    ],
)
def test_verification_error_is_mapped(world: OffsetsWorld, version: int, error: ErrorCode, returned: Error) -> None:
    responses = world.verify(api_version=version)
    world.link.respond({OFFSETS: error})
    assert responses == [returned]


def test_lost_coordinator_returns_error(world: OffsetsWorld) -> None:
    errors = world.verify()
    world.link.lose()
    assert errors == [ErrorCode.network_exception]


@pytest.mark.parametrize(
    ("version", "error"), [(ABORTABLE, ErrorCode.invalid_txn_state), (ADDS, ErrorCode.invalid_producer_epoch)]
)
def test_marker_invalidates_pending_verification(world: OffsetsWorld, version: int, error: Error) -> None:
    errors = world.verify(api_version=version)
    raised = 1 if version == ADDS else 0
    world.end(OFFSETS, epoch=raised, version=2 * raised, commit=False)
    world.link.respond()
    assert errors == [error]


def test_leadership_lost_during_verification_returns_not_coordinator(world: OffsetsWorld) -> None:
    errors = world.verify()
    world.partitions.remove(world.offsets)
    world.link.respond()
    assert errors == [ErrorCode.not_leader_or_follower]


def test_stale_epoch_is_rejected_and_open_transaction_accepted_without_request(world: OffsetsWorld) -> None:
    world.end(OFFSETS, epoch=2)
    assert world.verify(producer_epoch=1) == [ErrorCode.invalid_producer_epoch]
    errors = world.verify(producer_epoch=2)
    world.link.respond()
    record = Record(timestamp_ms=START_MS, key=b"k", value=b"v")
    batch = build([record], producer_id=7, producer_epoch=2, is_transactional=True)
    world.offsets.log.append(world.now(), batch, 0, origin=BatchOrigin.BROKER)
    assert errors == world.verify(producer_epoch=2) == [ErrorCode.none]
    assert (world.link.requests, world.offsets.log.verification.guards) == ([], {})


def test_disabled_verification_sends_requests_only_in_version_2() -> None:
    world = OffsetsWorld(demands=False)
    assert world.verify() == [ErrorCode.none]
    assert world.verify(api_version=ADDS) == []
    assert len(world.link.requests) == 1
