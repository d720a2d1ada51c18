"""UpdateFeatures."""

import pytest
from kio.schema.update_features.v2.request import UpdateFeaturesRequest

from reference_broker.apis.brokers import (
    k57_update_features,
)
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.controller_requests import (
    update_features_request,
)
from reference_broker.apis.tests.topic_requests import create_topics, topic
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause(
    "FeatureControlManagerTest.testApplyMetadataVersionChangeRecord",
    "FeatureControlManagerTest.testCanUpgradeToHigherVersion",
    "FeatureControlManagerTest.testCanUseSafeDowngradeIfMetadataDidNotChange",
)
@pytest.mark.clause("T-2")
def test_raising_metadata_version_enables_transactions() -> None:
    world = AdminWorld(crucible_bootstrap_metadata_version="12")
    assert create_topics(world, topic("big", 200))[0].error_code == ErrorCode.policy_violation
    response = world.request(k57_update_features, update_features_request(13))
    assert response.error_code == ErrorCode.none
    assert world.controller.image.features == {"metadata.version": 13}
    assert create_topics(world, topic("big", 200))[0].error_code == ErrorCode.none
    assert world.request(k57_update_features, update_features_request(12, upgrade_type=2)).error_code == ErrorCode.none
    assert create_topics(world, topic("other", 200))[0].error_code == ErrorCode.policy_violation


@pytest.mark.clause("FeatureControlManagerTest.testUpdateFeaturesErrorCases")
@pytest.mark.parametrize(
    ("body", "error"),
    [
        (update_features_request(28), "invalid_update_version"),
        (update_features_request(0), "invalid_update_version"),
        (update_features_request(12), "invalid_update_version"),
        (update_features_request(6, upgrade_type=2), "invalid_update_version"),
        (update_features_request(27, upgrade_type=2), "none"),
        (update_features_request(27, upgrade_type=9), "invalid_update_version"),
        (update_features_request(1, feature="no.such"), "invalid_update_version"),
    ],
)
def test_invalid_feature_update_returns_error(body: UpdateFeaturesRequest, error: str) -> None:
    world = AdminWorld()
    end = world.metadata.log.end
    for version in (0, 1, 2):
        response = world.request(k57_update_features, body, version)
        assert response.error_code.name == error
        has_results = version < 2 and error == "none"
        results = [(result.feature, result.error_code.name) for result in response.results]
        assert results == ([("metadata.version", "none")] if has_results else [])
    assert world.metadata.log.end == end


def test_update_features_validate_only_writes_nothing() -> None:
    world = AdminWorld(crucible_bootstrap_metadata_version="12")
    assert (
        world.request(k57_update_features, update_features_request(13, validate_only=True)).error_code == ErrorCode.none
    )
    assert world.controller.latest.features == {"metadata.version": 12}
