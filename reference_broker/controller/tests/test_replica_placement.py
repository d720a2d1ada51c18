"""Placement of new replicas: spread over racks and brokers, fenced ones last, never as leaders."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from reference_broker.controller.planning.replica_placement import placement
from reference_broker.controller.write_operations import ApiError
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage
from reference_broker.wire.errors import ErrorCode


def image(
    racks: dict[int, str | None], fenced: tuple[int, ...] | set[int] = (), leaving: tuple[int, ...] = ()
) -> MetadataImage:
    """``racks``: by broker ID."""
    return MetadataImage(
        brokers={
            broker_id: BrokerImage(
                broker_id, 1, bytes(16), "h", 1, broker_id in fenced, broker_id in leaving, rack=rack
            )
            for broker_id, rack in racks.items()
        }
    )


def placed(
    cluster: MetadataImage, factor: int, count: int, seed: int = 0, existing: Sequence[PartitionImage] = ()
) -> list[tuple[int, ...]]:
    found = placement(cluster, factor, Random(seed), existing)
    assert not isinstance(found, ApiError), found
    return list(islice(found, count))


def partition(*replicas: int) -> PartitionImage:
    return PartitionImage(replicas, replicas, replicas[0], 0, 0)


clusters = st.dictionaries(st.integers(0, 8), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9)


@pytest.mark.thorough
@pytest.mark.clause(
    "StripedReplicaPlacerTest.testAvoidFencedReplicaIfPossibleOnSingleRack",
    "StripedReplicaPlacerTest.testMultiPartitionTopicPlacementOnSingleUnfencedBroker",
    "StripedReplicaPlacerTest.testPlacementOnFencedReplicaOnSingleRack",
    "StripedReplicaPlacerTest.testSuccessfulPlacement",
    "StripedReplicaPlacerTest.testRackListWithMultipleRacks",
    "StripedReplicaPlacerTest.testRackListWithInvalidRacks",
)
@given(racks=clusters, data=st.data(), seed=st.integers(0, 2**32))
def test_replicas_are_distinct_live_first_and_spread_over_racks(
    racks: dict[int, str | None], data: DataObject, seed: int
) -> None:
    fenced = data.draw(st.sets(st.sampled_from(sorted(racks)), max_size=len(racks) - 1))
    cluster = image(racks, fenced)
    factor = data.draw(st.integers(1, len(racks)))
    for replicas in placed(cluster, factor, 30, seed):
        assert len(dict.fromkeys(replicas)) == factor
        assert replicas[0] not in fenced
        count_of_racks = len(dict.fromkeys(racks.values()))
        assert len(dict.fromkeys(racks[replica] for replica in replicas)) == min(factor, count_of_racks)
        for rack in dict.fromkeys(racks.values()):
            chosen = [replica for replica in replicas if racks[replica] == rack]
            live = [each for each in racks if racks[each] == rack and each not in fenced]
            assert sum(each in fenced for each in chosen) == max(0, len(chosen) - len(live))


@pytest.mark.clause(
    "StripedReplicaPlacerTest.testMultiPartitionTopicPlacementOnSingleUnfencedBroker",
    "StripedReplicaPlacerTest.testEvenDistribution",
)
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_leaders_are_balanced_over_live_brokers(factor: int) -> None:
    cluster = image({1: None, 2: None, 3: None, 4: None}, fenced=(4,))
    leaders = Counter(replicas[0] for replicas in placed(cluster, factor, 300))
    assert leaders == {1: 100, 2: 100, 3: 100}


def test_leaders_alternate_over_racks() -> None:
    cluster = image({1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"})
    for seed in range(10):
        leaders = [replicas[0] for replicas in placed(cluster, 2, 6, seed)]
        assert len({(leader + 1) // 2 for leader in leaders[:3]}) == 3
        assert len({(leader + 1) // 2 for leader in leaders[3:]}) == 3


@pytest.mark.clause("StripedReplicaPlacerTest.testEvenDistribution")
def test_replicas_are_balanced_with_varying_partners() -> None:
    cluster = image(dict.fromkeys(range(6), None))
    assignments = placed(cluster, 3, 600)
    assert set(Counter(replica for replicas in assignments for replica in replicas).values()) == {300}
    assert len(dict.fromkeys(tuple(sorted(replicas)) for replicas in assignments)) > 15


def test_equal_assignments_share_one_object() -> None:
    assignments = placed(image({1: None, 2: None}), 2, 100)
    assert len(dict.fromkeys(map(id, assignments))) == 2


def test_added_partitions_continue_after_last_one() -> None:
    cluster = image({1: None, 2: None, 3: None})
    for seed in range(10):
        assert placed(cluster, 3, 1, seed, [partition(3, 1, 2), partition(1, 2, 3)]) == [(2, 3, 1)]
    cluster = image({1: "a", 2: "a", 3: "b", 4: "b"})
    for seed in range(10):
        assert placed(cluster, 2, 1, seed, [partition(1, 4)]) == [(3, 2)]


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreatePartitionsFailsWhenAllBrokersAreFencedOrInControlledShutdown",
    "StripedReplicaPlacerTest.testAllBrokersFenced",
    "StripedReplicaPlacerTest.testRackListAllBrokersFenced",
    "StripedReplicaPlacerTest.testNotEnoughBrokers",
    "StripedReplicaPlacerTest.testRackListNotEnoughBrokers",
    "StripedReplicaPlacerTest.testNonPositiveReplicationFactor",
    "StripedReplicaPlacerTest.testRackListNonPositiveReplicationFactor",
)
@pytest.mark.parametrize(
    ("cluster", "factor"),
    [
        (image({1: None, 2: None}), 3),
        (image({1: None, 2: None, 3: None}, leaving=(3,)), 3),
        (image({1: None, 2: None}, fenced=(1, 2)), 1),
        (image({}), 1),
        (image({1: None}), 0),
        (image({1: "a", 2: "b", 3: "a"}), 4),
        (image({1: "a", 2: "b", 3: None}, fenced=(1, 2, 3)), 1),
        (image({1: "a", 2: "b"}), 0),
        (image({1: "a", 2: "b"}), -1),
    ],
)
def test_impossible_placement_is_rejected(cluster: MetadataImage, factor: int) -> None:
    found = placement(cluster, factor, Random(0))
    assert isinstance(found, ApiError)
    assert found.error is ErrorCode.invalid_replication_factor


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopicsISRInvariants", "BrokerHeartbeatManagerTest.testUsableBrokerIterator"
)
@pytest.mark.parametrize("rack", [None, "b"])
def test_broker_in_shutdown_gets_no_replica(rack: str | None) -> None:
    cluster = image({1: None, 2: None, 3: rack, 4: rack}, leaving=(3,))
    assert {broker for replicas in placed(cluster, 3, 20) for broker in replicas} == {1, 2, 4}
