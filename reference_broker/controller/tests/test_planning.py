"""Changes as values: the records that are planned in a context, and the outcome for the caller."""

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from reference_broker.controller import planning
from reference_broker.controller.planning.brokers import BLOCK_SIZE, ProducerIdBlock
from reference_broker.controller.planning.config_changes import SET, ConfigChange, RequestedConfigs
from reference_broker.controller.planning.feature_updates import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdates,
    RequestedLevel,
)
from reference_broker.controller.planning.partition_changes import Election
from reference_broker.controller.planning.partition_creation import NewPartitions, PartitionCreation, PlannedPartitions
from reference_broker.controller.planning.partition_requests import IsrChange, RequestedElections, RequestedIsr
from reference_broker.controller.planning.topic_creation import (
    NewTopic,
    PlannedTopic,
    TopicCreation,
)
from reference_broker.controller.planning.topic_deletion import NamedTopic, TopicDeletion
from reference_broker.controller.tests.planned import after, brokers, plan_context, records_of, slices_of
from reference_broker.controller.write_operations import NOT_CONTROLLER, ApiError, ControllerWriteOperation
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE
from reference_broker.metadata.image import MetadataImage, PartitionImage
from reference_broker.metadata.records import (
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    encode,
)
from reference_broker.wire.apis import DRAFTS
from reference_broker.wire.errors import ErrorCode

PLANS = sorted(Path(planning.__file__).parent.glob("*.py"))
LIVE = brokers(1, 2, 3)
NO_SPACE = ApiError(ErrorCode.kafka_storage_error, "no space left")


def with_topics(*names: str, partitions: int = 1, factor: int = 3) -> MetadataImage:
    wanted = [NewTopic(name, partitions, factor) for name in names]
    return after(LIVE, records_of(TopicCreation(wanted, False), plan_context(LIVE)))


def errors(outcomes: Mapping[str, object]) -> dict[str, str]:
    return {name: outcome.error.name if isinstance(outcome, ApiError) else "none" for name, outcome in outcomes.items()}


def test_topic_creation_records_and_isr_of_live_replicas() -> None:
    latest = brokers(1, 2, 3, fenced=(3,))
    change = TopicCreation([NewTopic("t", 2, 3, (("retention.ms", "5"),))], False)
    topic, setting, *rest = records_of(change, plan_context(latest))
    assert isinstance(topic, TopicRecord)
    partitions = [each for each in rest if isinstance(each, PartitionRecord)]
    assert partitions == rest
    assert setting == ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="5")
    assert [(partition.partition_id, len(partition.replicas)) for partition in partitions] == [
        (index, 3) for index in range(2)
    ]
    assert all(3 not in partition.isr and partition.leader == partition.isr[0] for partition in partitions)


def test_topic_ids_are_random_and_unused() -> None:
    def topic_id(seed: int, latest: MetadataImage = LIVE) -> bytes:
        record = records_of(TopicCreation([NewTopic("t", 1, 1)], False), plan_context(latest, seed=seed))[0]
        assert isinstance(record, TopicRecord)
        return record.topic_id

    assert topic_id(0) == topic_id(0) != topic_id(9)
    taken = after(LIVE, [TopicRecord(name="other", topic_id=topic_id(0))])
    assert topic_id(0, taken) not in (topic_id(0), *taken.topic_names)


def test_topic_name_is_taken_until_deletion_is_published() -> None:
    there = with_topics("t")
    change = TopicCreation([NewTopic("t", 1, 1)], False)
    assert records_of(change, plan_context(LIVE, published=there)) == []
    assert errors(change.outcome(None)) == {"t": "topic_already_exists"}


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopicWithCollisionChars",
    "ReplicationControlManagerTest.testTopicNameCollision",
)
def test_topics_of_one_request_are_validated_together() -> None:
    change = TopicCreation([NewTopic(name, 1, 1) for name in ("a.b", "a_b", "c", "c")], False)
    assert len(records_of(change, plan_context(LIVE))) == 2
    assert errors(change.outcome(None)) == {"a.b": "none", "a_b": "invalid_topic_exception", "c": "invalid_request"}


def test_validate_only_has_outcomes_and_no_records() -> None:
    change = TopicCreation([NewTopic("t", 4, 2)], True)
    assert records_of(change, plan_context(LIVE)) == []
    planned = change.outcome(None)["t"]
    assert isinstance(planned, PlannedTopic)
    assert (planned.partitions, planned.replication_factor) == (4, 2)


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (NO_SPACE, {"good": "kafka_storage_error", "t": "topic_already_exists"}),
        (NOT_CONTROLLER, {"good": "not_controller", "t": "not_controller"}),
    ],
)
def test_entry_error_precedes_change_error_and_lost_leadership_precedes_both(
    refused: ApiError, expected: dict[str, str]
) -> None:
    latest = with_topics("t")
    creation = TopicCreation([NewTopic("good", 1, 1), NewTopic("t", 1, 1)], False)
    records_of(creation, plan_context(latest))
    assert errors(creation.outcome(refused)) == expected
    growth = PartitionCreation([NewPartitions("t", 2), NewPartitions("gone", 2)], False)
    records_of(growth, plan_context(latest))
    gone = "unknown_topic_or_partition" if refused is NO_SPACE else "not_controller"
    assert errors(growth.outcome(refused)) == {"t": expected["good"], "gone": gone}


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__remote_log_metadata"])
def test_partition_count_of_hashed_internal_topic_is_fixed(name: str) -> None:
    """The partition of a group, a transactional ID or a tiered partition is its hash modulo that number."""
    growth = PartitionCreation([NewPartitions(name, 2), NewPartitions("t", 2)], False)
    records = records_of(growth, plan_context(with_topics("t", name)))
    assert len(records) == 1
    outcomes = growth.outcome(None)
    assert isinstance(outcomes["t"], PlannedPartitions)
    assert errors({name: outcomes[name]}) == {name: "invalid_partitions"}


def test_unplanned_change_reports_every_entry_once() -> None:
    change = TopicCreation([NewTopic(name, 1, 1) for name in ("b", "a", "b")], False)
    assert list(change.outcome(NOT_CONTROLLER)) == ["b", "a"]


def test_topic_by_name_and_by_id_is_duplicate() -> None:
    latest = with_topics("t", "u")
    entries = [NamedTopic("t", None), NamedTopic(None, latest.topics["t"].topic_id), NamedTopic("u", None)]
    change = TopicDeletion(entries)
    assert records_of(change, plan_context(latest)) == [RemoveTopicRecord(topic_id=latest.topics["u"].topic_id)]
    assert [isinstance(each, ApiError) for each in change.outcome(None)] == [True, True, False]


def test_unchanged_config_has_no_record() -> None:
    latest = after(with_topics("t"), [ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="5")])
    change = ConfigChange(
        [RequestedConfigs((2, "t"), (("retention.ms", SET, "5"), ("segment.bytes", SET, "2000")))], validate_only=False
    )
    (record,) = records_of(change, plan_context(latest))
    assert isinstance(record, ConfigRecord)
    assert record.name == "segment.bytes"
    assert change.outcome(None) == [None]


def test_isr_change_returns_resulting_partition() -> None:
    latest = with_topics("t")
    topic = latest.topics["t"]
    leader = topic.partitions[0].leader
    wanted = RequestedIsr(0, 0, 0, ((leader, -1),), 0)
    change = IsrChange(leader, leader, [(topic.topic_id, [wanted]), (None, [wanted])])
    (record,) = records_of(change, plan_context(latest))
    outcome = change.outcome(None)
    assert not isinstance(outcome, ApiError)
    (partition,), (unknown,) = outcome
    assert isinstance(partition, PartitionImage)
    assert (partition.isr, partition.partition_epoch) == ((leader,), 1)
    assert partition == after(latest, [record]).topics["t"].partitions[0]
    assert unknown is ErrorCode.unknown_topic_id


@pytest.mark.clause("ProducerIdControlManagerTest.testUnknownBrokerOrEpoch")
def test_isr_change_with_stale_broker_epoch_is_rejected() -> None:
    changes: tuple[ControllerWriteOperation[object], ...] = (IsrChange(1, 0, []), ProducerIdBlock(1, 0))
    for change in changes:
        assert records_of(change, plan_context(LIVE)) == []
        outcome = change.outcome(None)
        assert isinstance(outcome, ApiError)
        assert outcome.error is ErrorCode.stale_broker_epoch


@pytest.mark.clause(
    "ProducerIdControlManagerTest.testInitialResult", "ProducerIdControlManagerTest.testGenerateProducerIds"
)
def test_producer_id_blocks_are_consecutive() -> None:
    latest, firsts = LIVE, []
    for _ in range(3):
        change = ProducerIdBlock(1, 1)
        latest = after(latest, records_of(change, plan_context(latest)))
        firsts.append(change.outcome(None))
    assert firsts == [0, BLOCK_SIZE, 2 * BLOCK_SIZE]


@pytest.mark.clause("ProducerIdControlManagerTest.testMaxValue")
def test_no_producer_id_block_beyond_greatest_id() -> None:
    for next_id, first in ((2**63 - 1001, 2**63 - 1001), (2**63 - 1000, None), (2**63 - 2, None)):
        latest = replace(LIVE, next_producer_id=next_id)
        change = ProducerIdBlock(1, 1)
        for record in records_of(change, plan_context(latest)):
            assert decode(encode(record)) == record
        outcome = change.outcome(None)
        assert (None if isinstance(outcome, ApiError) else outcome) == first
        if isinstance(outcome, ApiError):
            assert outcome.error is ErrorCode.unknown_server_error


def test_election_of_all_partitions_omits_those_not_needing_one() -> None:
    latest = with_topics("t", partitions=3)
    every, one = RequestedElections(Election.PREFERRED, None), RequestedElections(Election.PREFERRED, [("t", [0])])
    assert records_of(every, plan_context(latest)) == records_of(one, plan_context(latest)) == []
    assert every.outcome(None) == [("t", [])]
    outcome = one.outcome(None)
    assert not isinstance(outcome, ApiError)
    ((_, ((_, refusal),)),) = outcome
    assert refusal is not None
    assert refusal.error is ErrorCode.election_not_needed


def test_plans_yield_when_event_time_is_used_up() -> None:
    latest = with_topics("t", partitions=4)
    assert slices_of(TopicCreation([NewTopic(f"n{number}", 1, 1) for number in range(5)], False), latest) == 6
    assert slices_of(TopicDeletion([NamedTopic("t", None), NamedTopic("gone", None)]), latest) == 3
    assert slices_of(RequestedElections(Election.PREFERRED, None), latest) == 5


@pytest.mark.clause(
    "FeaturesImageTest.testApplyDelta1",
    "FeatureControlManagerTest.testUpdateFeatures",
    "FeatureControlManagerTest.testUpdateFeaturesErrorCases",
    "FeatureControlManagerTest.testCannotUpgradeToLowerVersion",
)
@pytest.mark.clause("M-14")
@pytest.mark.parametrize(
    ("feature", "level", "upgrade_type", "error"),
    [
        (METADATA_EPOCH_FEATURE, 1, UPGRADE, ErrorCode.invalid_update_version),  # Broker 2 would restart without it.
        (METADATA_EPOCH_FEATURE, 2, UPGRADE, ErrorCode.invalid_update_version),
        (METADATA_EPOCH_FEATURE, 0, UPGRADE, None),
        ("metadata.version", 25, UPGRADE, ErrorCode.invalid_update_version),  # Broker 2 knows no more than 20.
        ("metadata.version", 20, UPGRADE, None),
        ("metadata.version", 10, UPGRADE, ErrorCode.invalid_update_version),
        ("metadata.version", 10, SAFE_DOWNGRADE, None),
        ("metadata.version", 5, SAFE_DOWNGRADE, ErrorCode.invalid_update_version),
        ("group.version", 1, UPGRADE, ErrorCode.invalid_update_version),
    ],
)
def test_feature_level_must_be_supported_by_all_registered_brokers(
    feature: str, level: int, upgrade_type: int, error: ErrorCode | None
) -> None:
    registered = {
        1: replace(LIVE.brokers[1], features=(("metadata.version", 7, 27), (METADATA_EPOCH_FEATURE, 0, 1))),
        2: replace(LIVE.brokers[2], features=(("metadata.version", 7, 20),), fenced=True),
    }
    latest = MetadataImage(brokers=registered, features={"metadata.version": 13})
    change = FeatureUpdates([RequestedLevel(feature, level, upgrade_type)], False)
    records = records_of(change, plan_context(latest))
    problem = change.outcome(None)
    if error is None:
        assert problem is None
        assert after(latest, records).features.get(feature, 0) == level
    else:
        assert (records, problem and problem.error) == ([], error)


@pytest.mark.parametrize(
    ("feature", "level", "upgrade_type", "is_granted"),
    [
        ("group.version", 1, UPGRADE, True),
        ("group.version", 2, UPGRADE, False),
        ("kraft.version", 1, UPGRADE, True),
        ("kraft.version", 0, SAFE_DOWNGRADE, False),
        ("share.version", 0, SAFE_DOWNGRADE, True),
        ("share.version", 1, UPGRADE, False),
        ("streams.version", 0, UNSAFE_DOWNGRADE, True),
        ("no.version", 0, SAFE_DOWNGRADE, False),
    ],
)
def test_kafka_feature_without_effect_is_accepted(
    feature: str, level: int, upgrade_type: int, is_granted: bool
) -> None:
    """As Apache Kafka 4.1.1 grants and rejects them, except share.version 1, which it has."""
    all_know = {
        node: replace(broker, features=(("group.version", 0, 1), ("kraft.version", 0, 1)))
        for node, broker in LIVE.brokers.items()
    }
    latest = MetadataImage(brokers=all_know, features={} if level else {"kraft.version": 1})
    change = FeatureUpdates([RequestedLevel(feature, level, upgrade_type)], False)
    records = records_of(change, plan_context(latest))
    assert (change.outcome(None) is None) == is_granted
    if is_granted:
        assert after(latest, records).features.get(feature, 0) == level


@pytest.mark.clause("D-3")
@pytest.mark.parametrize("feature", DRAFTS.values())
@pytest.mark.parametrize("level", [0, 1, 2])
def test_draft_feature_level_is_accepted_and_not_stored(feature: str, level: int) -> None:
    change = FeatureUpdates([RequestedLevel(feature, level, UPGRADE if level else UNSAFE_DOWNGRADE)], False)
    assert records_of(change, plan_context(LIVE)) == []
    problem = change.outcome(None)
    assert (problem and problem.error) == (None if level == 1 else ErrorCode.invalid_update_version)


@pytest.mark.clause(
    "FeatureControlManagerTest.testCannotDowngradeToHigherVersion",
    "FeatureControlManagerTest.testCannotUnsafeDowngradeToHigherVersion",
)
@pytest.mark.parametrize("upgrade_type", [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_downgrade_to_higher_level_is_rejected(upgrade_type: int) -> None:
    change = FeatureUpdates([RequestedLevel("metadata.version", 14, upgrade_type)], False)
    assert records_of(change, plan_context(MetadataImage(features={"metadata.version": 13}))) == []
    problem = change.outcome(None)
    assert problem is not None
    assert problem.error is ErrorCode.invalid_update_version


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_plan_modules_import_no_messages(path: Path) -> None:
    """Only the error codes: a request of another version, or from this node, is the same change."""
    imported = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    messages = [name for name in imported if name.startswith(("kio", "reference_broker.wire"))]
    assert set(messages) <= {"reference_broker.wire.errors"}
