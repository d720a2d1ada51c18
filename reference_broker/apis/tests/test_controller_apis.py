"""Changes of configs and features. Large or repeated changes have one effect."""

import pytest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.update_features.v2.request import UpdateFeaturesRequest

from reference_broker.apis.brokers import (
    k57_update_features,
)
from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.controller_requests import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    Resource,
    Setting,
    alter,
    raised,
    replace_all,
    settings_of,
)
from reference_broker.apis.tests.test_topic_admin import create, delete, named, topic
from reference_broker.apis.topics import k19_create_topics
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause(
    "QuorumControllerTest.testConfigurationOperations",
    "ConfigurationControlManagerTest.testIncrementalAlterConfigs",
    "ConfigurationControlManagerTest.testIncrementalAlterMultipleConfigValues",
)
def test_incremental_alter_configs_set_delete_append_subtract() -> None:
    world = AdminWorld()
    create(world, topic("t", configs=(("retention.ms", "5"), ("segment.bytes", "9000"))))
    change = [("retention.ms", SET, "7"), ("segment.bytes", DELETE, None), ("cleanup.policy", APPEND, "compact")]
    assert alter(world, ("t", change)) == ["none"]
    assert settings_of(world, "t") == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
    assert world.broker.partitions.by_name["t", 0].log.config.retention_ms == 7
    assert alter(world, ("t", [("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)])) == ["none"]
    assert settings_of(world, "t") == {"cleanup.policy": "compact"}
    assert settings_of(world.restart(seed=1), "t") == {"cleanup.policy": "compact"}


@pytest.mark.clause("ConfigurationControlManagerTest.testLegacyAlterConfigs")
def test_alter_configs_replaces_all_configs() -> None:
    world = AdminWorld()
    create(world, topic("t", configs=(("retention.ms", "5"), ("segment.bytes", "9000"))))
    assert replace_all(world, "t", [("segment.bytes", "9000"), ("flush.ms", "1")]) == "none"
    assert settings_of(world, "t") == {"segment.bytes": "9000", "flush.ms": "1"}
    assert replace_all(world, "t", []) == "none"
    assert settings_of(world, "t") == {}


@pytest.mark.clause(
    "QuorumControllerTest.testConfigResourceExistenceChecker",
    "ConfigurationControlManagerTest.testIncrementalAlterConfig",
    "ConfigurationControlManagerTest.testIncrementalAlterConfigsWithoutExistence",
)
@pytest.mark.parametrize(
    ("resource", "error"),
    [
        (("nope", []), "unknown_topic_or_partition"),
        (("no good", []), "invalid_topic_exception"),
        (("1", [("fetch.max.bytes", SET, "1")], 4), "invalid_request"),
        (("x", [], 32), "invalid_request"),
        (("t", [("nonsense", SET, "1")]), "invalid_config"),
        (("t", [("retention.ms", SET, "soon")]), "invalid_config"),
        (("t", [("retention.ms", SET, None)]), "invalid_request"),
        (("", []), "invalid_request"),
        (("nope", [("nonsense", SET, "1")]), "invalid_config"),
        (("t", [("retention.ms", APPEND, "1")]), "invalid_config"),
        (("t", [("retention.ms", 9, "1")]), "invalid_request"),
        (("t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]), "invalid_request"),
        (("t", [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "5")]), "invalid_config"),
    ],
)
def test_invalid_config_change_returns_error_and_others_succeed(resource: Resource, error: str) -> None:
    world = AdminWorld()
    create(world, topic("t"), topic("u"))
    assert alter(world, resource, ("u", [("flush.ms", SET, "3")])) == [error, "none"]
    assert (settings_of(world, "t"), settings_of(world, "u")) == ({}, {"flush.ms": "3"})


def test_duplicate_resource_and_validate_only_change_nothing() -> None:
    world = AdminWorld()
    create(world, topic("t"))
    good: Resource = ("t", [("flush.ms", SET, "3")])
    end = world.metadata.log.end
    assert alter(world, good, good) == ["invalid_request"] * 2
    assert alter(world, good, validate_only=True) == ["none"]
    assert world.metadata.log.end == end
    assert alter(world, good) == ["none"]
    end = world.metadata.log.end
    assert alter(world, good) == ["none"]
    assert world.metadata.log.end == end, "a setting that stays as it is needs no record"
    assert replace_all(world, "t", [("flush.ms", None)]) == "invalid_request"
    assert replace_all(world, "t", [("flush.ms", "1"), ("flush.ms", "2")]) == "invalid_request"


@pytest.mark.clause(
    "FeatureControlManagerTest.testApplyMetadataVersionChangeRecord",
    "FeatureControlManagerTest.testCanUpgradeToHigherVersion",
    "FeatureControlManagerTest.testCanUseSafeDowngradeIfMetadataDidNotChange",
)
@pytest.mark.clause("T-2")
def test_raising_metadata_version_enables_transactions() -> None:
    world = AdminWorld(crucible_bootstrap_metadata_version="12")
    assert create(world, topic("big", 200))[0].error_code == ErrorCode.policy_violation
    response = world.request(k57_update_features, raised(13))
    assert response.error_code == ErrorCode.none
    assert world.controller.image.features == {"metadata.version": 13}
    assert create(world, topic("big", 200))[0].error_code == ErrorCode.none
    assert world.request(k57_update_features, raised(12, upgrade_type=2)).error_code == ErrorCode.none
    assert create(world, topic("other", 200))[0].error_code == ErrorCode.policy_violation


@pytest.mark.clause("FeatureControlManagerTest.testUpdateFeaturesErrorCases")
@pytest.mark.parametrize(
    ("body", "error"),
    [
        (raised(28), "invalid_update_version"),
        (raised(0), "invalid_update_version"),
        (raised(12), "invalid_update_version"),
        (raised(6, upgrade_type=2), "invalid_update_version"),
        (raised(27, upgrade_type=2), "none"),
        (raised(27, upgrade_type=9), "invalid_update_version"),
        (raised(1, feature="no.such"), "invalid_update_version"),
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
    assert world.request(k57_update_features, raised(13, validate_only=True)).error_code == ErrorCode.none
    assert world.controller.latest.features == {"metadata.version": 12}


@pytest.mark.thorough
@pytest.mark.clause("T-6", "T-8")
def test_topic_of_10000_partitions_is_published_and_deleted_atomically() -> None:
    world = AdminWorld()
    seen = []
    world.metadata.loader.subscribe(
        lambda _, image: seen.append({name: len(one.partitions) for name, one in image.topics.items()})
    )
    (result,) = create(world, topic("big", 10_000))
    assert (result.error_code, result.num_partitions) == (ErrorCode.none, 10_000)
    (again,) = create(world, topic("big", 10_000))
    assert again.error_code == ErrorCode.topic_already_exists
    assert seen == [{"big": 10_000}]
    assert delete(world, named("big"))[0].error_code == ErrorCode.none
    assert seen[1:] == [{}]


@pytest.mark.clause("T-6")
def test_create_500_topics_in_one_request_is_published_atomically() -> None:
    world = AdminWorld()
    seen = []
    world.metadata.loader.subscribe(lambda _, image: seen.append(len(image.topics)))
    results = create(world, *(topic(f"t.{number}", 3) for number in range(500)), topic("t_7"))
    errors = [result.error_code for result in results]
    assert (errors[:500], errors[500]) == ([ErrorCode.none] * 500, ErrorCode.invalid_topic_exception)
    assert seen == [500]


@pytest.mark.clause("T-6")
def test_3000_config_changes_in_one_request_are_one_transaction() -> None:
    world = AdminWorld()
    create(world, *(topic(f"t{number}") for number in range(500)))
    keys = ("flush.ms", "flush.messages", "retention.ms", "retention.bytes", "segment.ms")
    before = world.metadata.kinds().count("begin")
    pairs: list[Setting] = [*((key, SET, "77") for key in keys), ("segment.bytes", SET, "5000")]
    assert alter(world, *((f"t{number}", pairs) for number in range(500))) == ["none"] * 500
    assert sum(len(settings_of(world, f"t{number}")) for number in range(500)) == 3000
    assert world.metadata.kinds().count("begin") == before + 1


@pytest.mark.clause("T-10")
def test_duplicate_create_topics_returns_not_controller_when_leadership_is_lost() -> None:
    """The first request was in flight and was lost with the leadership: the second one was judged by its pending
    change."""
    world = AdminWorld()
    world.auto = False
    body = CreateTopicsRequest(topics=(topic("t", 1),), timeout=NO_WAIT)
    calls = [world.send(k19_create_topics, body) for _ in range(2)]
    assert [call.responses for call in calls] == [[], []]
    world.metadata.lose()
    assert [call.responses[0].topics[0].error_code for call in calls] == [ErrorCode.not_controller] * 2


@pytest.mark.clause("T-10")
def test_create_topics_retried_after_failover_returns_topic_already_exists() -> None:
    world = AdminWorld()
    world.auto = False
    body = CreateTopicsRequest(topics=(topic("big", 300),), timeout=NO_WAIT)
    call = world.send(k19_create_topics, body)
    world.metadata.lose()
    assert call.responses[0].topics[0].error_code == ErrorCode.not_controller
    world.metadata.win()
    world.settle()
    world.auto = True
    assert world.request(k19_create_topics, body).topics[0].error_code == ErrorCode.topic_already_exists
    assert len(world.controller.image.topics["big"].partitions) == 300
