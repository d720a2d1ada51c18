"""The cluster's min.insync.replicas, and the feature that needs it (KIP-966, clause E-8)."""

from dataclasses import replace

import pytest

from reference_broker.controller.activation_records import activation_records
from reference_broker.controller.planning.config_changes import DELETE, SET, ConfigChange, RequestedConfigs
from reference_broker.controller.planning.feature_updates import (
    SAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdates,
    RequestedLevel,
)
from reference_broker.controller.tests.planned import after, brokers, plan_context, records_of
from reference_broker.controller.write_operations import ApiError
from reference_broker.metadata.broker_settings import CLUSTER, MIN_ISR_KEY, cluster_min_isr_record, min_isr_of
from reference_broker.metadata.features import ELR_FEATURE, METADATA_VERSION, METADATA_VERSION_FEATURE
from reference_broker.metadata.image import BROKER_RESOURCE, EMPTY_IMAGE, TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.records import (
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    TopicRecord,
)

SUPPORTED = ((METADATA_VERSION_FEATURE, 1, METADATA_VERSION), (ELR_FEATURE, 0, 1))


def cluster(*, elr: int = 1, version: int = METADATA_VERSION) -> MetadataImage:
    image = brokers(1)
    image = replace(image, brokers={1: replace(image.brokers[1], features=SUPPORTED)})
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=version),
        FeatureLevelRecord(name=ELR_FEATURE, feature_level=elr),
        TopicRecord(name="t", topic_id=b"t" * 16),
    ]
    return after(image, [*records, cluster_min_isr_record(2)] if elr else records)


def altered(
    image: MetadataImage, resource: tuple[int, str], operation: int, value: str | None, name: str = MIN_ISR_KEY
) -> tuple[list[object], ApiError | None]:
    """Return the records, and the reason if there are none."""
    change = ConfigChange([RequestedConfigs(resource, ((name, operation, value),))], False)
    records = records_of(change, plan_context(image))
    (refusal,) = change.outcome(None)
    return list(records), refusal


@pytest.mark.clause(
    "QuorumControllerTest.testMinIsrUpdateWithElr", "ReplicationControlManagerTest.testElrsRemovedOnMinIsrUpdate"
)
@pytest.mark.clause("E-8")
@pytest.mark.parametrize(("resource", "name"), [((TOPIC_RESOURCE, "t"), "t"), (CLUSTER, "")])
def test_changed_min_isr_clears_eligible_leader_replicas(resource: tuple[int, str], name: str) -> None:
    records, refusal = altered(cluster(), resource, SET, "3")
    assert refusal is None
    assert records == [
        ConfigRecord(resource_type=resource[0], resource_name=name, name=MIN_ISR_KEY, value="3"),
        ClearElrRecord(topic_name=name),
    ]
    assert altered(cluster(), (TOPIC_RESOURCE, "t"), SET, "7", "retention.ms")[0] == [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="t", name="retention.ms", value="7")
    ]


@pytest.mark.clause("ConfigurationControlManagerTest.testRejectMinIsrChangeWhenElrEnabled")
@pytest.mark.clause("E-8")
def test_cluster_min_isr_is_not_removable_and_broker_min_isr_not_settable() -> None:
    for resource, operation, value, name, error in (
        (CLUSTER, DELETE, None, MIN_ISR_KEY, "invalid_config"),
        (CLUSTER, SET, "0", MIN_ISR_KEY, "invalid_request"),
        (CLUSTER, SET, "1", "num.partitions", "invalid_request"),
        ((BROKER_RESOURCE, "1"), SET, "1", MIN_ISR_KEY, "invalid_config"),
        ((BROKER_RESOURCE, "1"), SET, "1", "num.partitions", "invalid_request"),
    ):
        records, refusal = altered(cluster(), resource, operation, value, name)
        assert records == []
        assert refusal is not None
        assert refusal.error.name == error
    records, refusal = altered(cluster(elr=0), CLUSTER, SET, "3")
    set_to_three = ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=MIN_ISR_KEY, value="3")
    assert (records, refusal) == ([set_to_three], None), "without the feature nothing is eligible"


@pytest.mark.clause("E-8")
def test_feature_removes_min_isr_of_brokers() -> None:
    own = ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="1", name=MIN_ISR_KEY, value="3")
    change = FeatureUpdates([RequestedLevel(ELR_FEATURE, 1, UPGRADE)], False)
    records = records_of(change, plan_context(after(cluster(elr=0), [own])))
    assert replace(own, value=None) in records


@pytest.mark.clause(
    "ConfigurationControlManagerTest.testMaybeGenerateElrSafetyRecords",
    "ConfigurationControlManagerTest.testElrUpgrade",
    "FeatureControlManagerTest.testUpgradeElrFeatureLevel",
)
@pytest.mark.clause("E-8")
def test_feature_needs_metadata_version_and_sets_cluster_min_isr() -> None:
    def wanted(image: MetadataImage, *levels: tuple[str, int, int]) -> tuple[list[object], object]:
        change = FeatureUpdates([RequestedLevel(*level) for level in levels], False)
        records = records_of(change, plan_context(image, min_insync_replicas="2", default_replication_factor="2"))
        return list(records), change.outcome(None)

    on = FeatureLevelRecord(name=ELR_FEATURE, feature_level=1)
    assert wanted(cluster(elr=0), (ELR_FEATURE, 1, UPGRADE)) == ([on, cluster_min_isr_record(2)], None)
    assert wanted(cluster(elr=0, version=22), (ELR_FEATURE, 1, UPGRADE))[0] == []
    both = ((METADATA_VERSION_FEATURE, 23, UPGRADE), (ELR_FEATURE, 1, UPGRADE))
    assert wanted(cluster(elr=0, version=22), *both)[0][1:] == [on, cluster_min_isr_record(2)]
    lowered = (METADATA_VERSION_FEATURE, 22, SAFE_DOWNGRADE)
    records, problem = wanted(cluster(), lowered)
    assert records == []
    assert isinstance(problem, ApiError)
    assert "needs metadata.version 23" in problem.message
    assert len(wanted(cluster(), lowered, (ELR_FEATURE, 0, SAFE_DOWNGRADE))[0]) == 2


@pytest.mark.clause(
    "ActivationRecordsGeneratorTest.testActivationMessageForEmptyLogAtMv4_0WithTransactionAndElr",
    "QuorumControllerTest.testElrEnabledByDefault",
)
@pytest.mark.clause("E-8")
def test_new_cluster_has_feature_from_its_metadata_version() -> None:
    assert activation_records(EMPTY_IMAGE, False, 23, 0, 2).bootstrap == (
        FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=23),
        FeatureLevelRecord(name=ELR_FEATURE, feature_level=1),
        cluster_min_isr_record(2),
    )
    assert len(activation_records(EMPTY_IMAGE, False, 22, 0, 2).bootstrap) == 1
    assert len(activation_records(EMPTY_IMAGE, False, 25, 0, 0).bootstrap) == 1


def test_topic_min_isr_overrides_cluster_min_isr() -> None:
    image = cluster()
    assert min_isr_of(image, "t") == 2
    own = ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="t", name=MIN_ISR_KEY, value="1")
    assert min_isr_of(after(image, [own]), "t") == 1
    assert min_isr_of(cluster(elr=0), "t") == 1
