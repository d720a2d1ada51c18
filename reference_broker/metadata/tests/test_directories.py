"""Offline replicas. The cases are those of Kafka's test for directories in MetadataCacheTest."""

from dataclasses import replace

import pytest

from reference_broker.metadata.cache import cache_of
from reference_broker.metadata.identifiers import LOST_DIRECTORY, NO_DIRECTORY, UNASSIGNED_DIRECTORY
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage

FIRST, SECOND, UNKNOWN = b"1" * 16, b"2" * 16, b"u" * 16
BROKERS = {number: BrokerImage(number, number, bytes(16), "h", 9093, False, log_dirs=(home,))
           for number, home in ((0, FIRST), (1, SECOND))}  # fmt: skip


def offline(brokers: dict[int, BrokerImage], *directories: bytes) -> tuple[int, ...]:
    partition = PartitionImage((0, 1), (0, 1), 0, 0, 0, directories=directories)
    return cache_of(MetadataImage(brokers=brokers), "c", 0).offline_replicas(partition)


@pytest.mark.parametrize(
    ("directories", "expected"),
    [
        ((FIRST, LOST_DIRECTORY), (1,)),
        ((UNKNOWN, UNASSIGNED_DIRECTORY), (0,)),
        ((NO_DIRECTORY, SECOND), ()),
        ((), ()),
    ],
)
def test_replica_is_offline_if_its_directory_is(directories: tuple[bytes, ...], expected: tuple[int, ...]) -> None:
    assert offline(BROKERS, *directories) == expected


def test_replica_of_a_fenced_or_unknown_broker_is_offline() -> None:
    assert offline({0: BROKERS[0], 1: replace(BROKERS[1], fenced=True)}, FIRST, SECOND) == (1,)
    assert offline({1: BROKERS[1]}, FIRST, SECOND) == (0,)


def test_of_a_broker_whose_directories_were_never_reported_only_lost_replicas_are_offline() -> None:
    unknown = {number: replace(broker, log_dirs=()) for number, broker in BROKERS.items()}
    assert offline(unknown, FIRST, LOST_DIRECTORY) == (1,)
