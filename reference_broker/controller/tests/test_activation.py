"""The first records of a new active controller (counterparts of Kafka's ActivationRecordsGeneratorTest)."""

import pytest

from reference_broker.controller.activation_records import ActivationRecords, activation_records
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.records import FeatureLevelRecord, MetadataFault


def level(version: int) -> tuple[FeatureLevelRecord, ...]:
    return (FeatureLevelRecord(name="metadata.version", feature_level=version),)


@pytest.mark.clause(
    "ActivationRecordsGeneratorTest.testActivationMessageForEmptyLog",
    "ActivationRecordsGeneratorTest.testActivationMessageForEmptyLogAtMv3_4",
    "ActivationRecordsGeneratorTest.testActivationMessageForEmptyLogAtMv3_6",
    "ActivationRecordsGeneratorTest.testActivationMessageForEmptyLogAtMv3_6WithTransaction",
    "QuorumControllerTest.testActivationRecords33",
    "QuorumControllerTest.testActivationRecords34",
    "QuorumControllerTest.testActivationRecordsNonEmptyLog",
    "QuorumControllerTest.testActivationRecordsPartialTransaction",
)
@pytest.mark.clause("T-7")
@pytest.mark.parametrize(
    ("image", "in_transaction", "configured", "expected"),
    [
        (EMPTY_IMAGE, False, 12, ActivationRecords(None, level(12), False)),
        (EMPTY_IMAGE, False, 13, ActivationRecords(None, level(13), True)),
        (EMPTY_IMAGE, True, 25, ActivationRecords("Bootstrap was not finished", level(25), True)),
        (
            MetadataImage(features={"metadata.version": 13}),
            True,
            12,
            ActivationRecords("Controller failover", (), False),
        ),
        (MetadataImage(features={"metadata.version": 12}), False, 25, ActivationRecords(None, (), False)),
    ],
)
def test_activation_records_by_end_of_log(
    image: MetadataImage, in_transaction: bool, configured: int, expected: ActivationRecords
) -> None:
    assert activation_records(image, in_transaction, configured) == expected


@pytest.mark.clause("QuorumControllerTest.testActivationRecordsPartialTransactionNoSupport")
@pytest.mark.clause("T-2")
@pytest.mark.parametrize(
    ("image", "configured"), [(EMPTY_IMAGE, 12), (MetadataImage(features={"metadata.version": 12}), 25)]
)
def test_open_transaction_below_its_metadata_version_raises(image: MetadataImage, configured: int) -> None:
    with pytest.raises(MetadataFault, match=r"metadata.version 12 does not allow"):
        activation_records(image, True, configured)


@pytest.mark.clause("X-9")
@pytest.mark.parametrize(
    ("version", "level", "initial"), [(25, 2, 2), (24, 2, 2), (24, 1, 1), (23, 2, 0), (25, 0, 0), (12, 2, 0)]
)
def test_new_cluster_has_transaction_version_of_its_metadata_version(version: int, level: int, initial: int) -> None:
    """Kafka's TransactionVersion: levels 1 and 2 come with 4.0-IV2. An existing cluster is not changed."""

    def level_of(image: MetadataImage) -> int:
        first = activation_records(image, False, version, bootstrap_transaction_level=level).bootstrap
        levels = {each.name: each.feature_level for each in first if isinstance(each, FeatureLevelRecord)}
        return levels.get("transaction.version", 0)

    assert level_of(EMPTY_IMAGE) == initial
    assert level_of(MetadataImage(features={"metadata.version": version})) == 0
