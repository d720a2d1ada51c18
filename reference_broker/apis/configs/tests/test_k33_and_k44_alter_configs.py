"""AlterConfigs and IncrementalAlterConfigs. Large or repeated changes have one effect."""

import pytest

from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.controller_requests import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    Resource,
    Setting,
    alter_configs,
    incremental_alter_configs,
    settings_of,
)
from reference_broker.apis.tests.topic_requests import create_topics, topic


@pytest.mark.clause(
    "QuorumControllerTest.testConfigurationOperations",
    "ConfigurationControlManagerTest.testIncrementalAlterConfigs",
    "ConfigurationControlManagerTest.testIncrementalAlterMultipleConfigValues",
)
def test_incremental_alter_configs_set_delete_append_subtract() -> None:
    world = AdminWorld()
    create_topics(world, topic("t", configs=(("retention.ms", "5"), ("segment.bytes", "9000"))))
    change = [("retention.ms", SET, "7"), ("segment.bytes", DELETE, None), ("cleanup.policy", APPEND, "compact")]
    assert incremental_alter_configs(world, ("t", change)) == ["none"]
    assert settings_of(world, "t") == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
    assert world.broker.partitions.by_name["t", 0].log.config.retention_ms == 7
    assert incremental_alter_configs(
        world, ("t", [("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)])
    ) == ["none"]
    assert settings_of(world, "t") == {"cleanup.policy": "compact"}
    assert settings_of(world.restart(seed=1), "t") == {"cleanup.policy": "compact"}


@pytest.mark.clause("ConfigurationControlManagerTest.testLegacyAlterConfigs")
def test_alter_configs_replaces_all_configs() -> None:
    world = AdminWorld()
    create_topics(world, topic("t", configs=(("retention.ms", "5"), ("segment.bytes", "9000"))))
    assert alter_configs(world, "t", [("segment.bytes", "9000"), ("flush.ms", "1")]) == "none"
    assert settings_of(world, "t") == {"segment.bytes": "9000", "flush.ms": "1"}
    assert alter_configs(world, "t", []) == "none"
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
    create_topics(world, topic("t"), topic("u"))
    assert incremental_alter_configs(world, resource, ("u", [("flush.ms", SET, "3")])) == [error, "none"]
    assert (settings_of(world, "t"), settings_of(world, "u")) == ({}, {"flush.ms": "3"})


def test_duplicate_resource_and_validate_only_change_nothing() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    good: Resource = ("t", [("flush.ms", SET, "3")])
    end = world.metadata.log.end
    assert incremental_alter_configs(world, good, good) == ["invalid_request"] * 2
    assert incremental_alter_configs(world, good, validate_only=True) == ["none"]
    assert world.metadata.log.end == end
    assert incremental_alter_configs(world, good) == ["none"]
    end = world.metadata.log.end
    assert incremental_alter_configs(world, good) == ["none"]
    assert world.metadata.log.end == end, "a setting that stays as it is needs no record"
    assert alter_configs(world, "t", [("flush.ms", None)]) == "invalid_request"
    assert alter_configs(world, "t", [("flush.ms", "1"), ("flush.ms", "2")]) == "invalid_request"


@pytest.mark.clause("T-6")
def test_3000_config_changes_in_one_request_are_one_transaction() -> None:
    world = AdminWorld()
    create_topics(world, *(topic(f"t{number}") for number in range(500)))
    keys = ("flush.ms", "flush.messages", "retention.ms", "retention.bytes", "segment.ms")
    before = world.metadata.kinds().count("begin")
    pairs: list[Setting] = [*((key, SET, "77") for key in keys), ("segment.bytes", SET, "5000")]
    assert incremental_alter_configs(world, *((f"t{number}", pairs) for number in range(500))) == ["none"] * 500
    assert sum(len(settings_of(world, f"t{number}")) for number in range(500)) == 3000
    assert world.metadata.kinds().count("begin") == before + 1
