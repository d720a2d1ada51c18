"""Kafka's requirements for a topic with a remote tier: the cases of LogConfig.validateTopicLogConfigValues and of
ControllerConfigurationValidator, one by one."""

from collections.abc import Mapping

import pytest

from reference_broker.configuration.broker_config import BrokerConfig, ConfigError
from reference_broker.configuration.consistency import check_topic

ON = {"remote.storage.enable": "true"}
COPY_OFF = {**ON, "remote.log.copy.disable": "true"}
TIER = {"remote.log.storage.system.enable": "true"}


def check(after: Mapping[str, str], before: Mapping[str, str] | None = None, **broker: str) -> None:
    given = {name.replace("_", "."): text for name, text in broker.items()}
    check_topic(BrokerConfig.parse({**TIER, **given}), before or {}, after)


@pytest.mark.clause(
    "RemoteTopicCrudTest.testCreateRemoteTopicWithValidRetentionTime",
    "RemoteTopicCrudTest.testCreateRemoteTopicWithValidRetentionSize",
    "RemoteTopicCrudTest.testCreateRemoteTopicWithCopyDisabledAndDeleteOnDisable",
    "RemoteTopicCrudTest.testUpdateTopicConfigWithValidRetentionTimeTest",
    "RemoteTopicCrudTest.testUpdateTopicConfigWithValidRetentionSizeTest",
)
@pytest.mark.parametrize(
    "after",
    [
        {},
        ON,
        {**ON, "cleanup.policy": "delete"},
        {**ON, "retention.ms": "1000", "local.retention.ms": "1000"},
        {**ON, "retention.ms": "1000", "local.retention.ms": "-2"},
        {**ON, "retention.ms": "-1", "local.retention.ms": "-1"},
        {**ON, "retention.bytes": "1000", "local.retention.bytes": "0"},
        {**ON, "retention.bytes": "-1", "local.retention.bytes": "5"},
        COPY_OFF,
        {**COPY_OFF, "retention.ms": "7", "local.retention.ms": "7", "local.retention.bytes": "-1"},
        {"local.retention.ms": "5", "retention.ms": "1"},
        {"cleanup.policy": "compact"},
        {"remote.log.delete.on.disable": "true"},
    ],
)
def test_these_settings_are_taken(after: Mapping[str, str]) -> None:
    check(after)


@pytest.mark.clause(
    "UnifiedLogTest.testEnableRemoteLogStorageOnCompactedTopics",
    "RemoteTopicCrudTest.testCreateRemoteTopicWithInvalidRetentionTime",
    "RemoteTopicCrudTest.testCreateRemoteTopicWithInvalidRetentionSize",
    "RemoteTopicCrudTest.testCreateCompactedRemoteStorage",
    "RemoteTopicCrudTest.testCreateTopicRetentionMsValidationWithRemoteCopyDisabled",
    "RemoteTopicCrudTest.testCreateTopicRetentionBytesValidationWithRemoteCopyDisabled",
)
@pytest.mark.parametrize(
    ("after", "names"),
    [
        ({**ON, "cleanup.policy": "compact"}, "compacted"),
        ({**ON, "cleanup.policy": "compact,delete"}, "compacted"),
        ({**ON, "retention.ms": "1000", "local.retention.ms": "1001"}, "local.retention.ms is 1001"),
        ({**ON, "retention.ms": "1000", "local.retention.ms": "-1"}, "local.retention.ms is -1"),
        ({**ON, "retention.bytes": "1000", "local.retention.bytes": "1001"}, "local.retention.bytes is 1001"),
        ({**ON, "retention.bytes": "1000", "local.retention.bytes": "-1"}, "local.retention.bytes is -1"),
        ({**COPY_OFF, "retention.ms": "7", "local.retention.ms": "6"}, "both must be the same"),
        ({**COPY_OFF, "retention.bytes": "7", "local.retention.bytes": "6"}, "both must be the same"),
    ],
)
def test_these_settings_are_refused_with_one_sentence(after: Mapping[str, str], names: str) -> None:
    with pytest.raises(ConfigError, match=names) as refused:
        check(after)
    assert str(refused.value).count("\n") == 0


@pytest.mark.clause("RemoteTopicCrudTest.testEnableRemoteLogWhenSystemRemoteStorageIsDisabled")
def test_cluster_without_a_tier_has_no_tiered_topics() -> None:
    with pytest.raises(ConfigError, match=r"remote\.log\.storage\.system\.enable"):
        check_topic(BrokerConfig.parse({}), {}, ON)
    check_topic(BrokerConfig.parse({}), {}, {})


@pytest.mark.clause(
    "RemoteTopicCrudTest.testCreateRemoteTopicWithInheritedLocalRetentionTime",
    "RemoteTopicCrudTest.testCreateRemoteTopicWithInheritedLocalRetentionSize",
    "RemoteTopicCrudTest.testUpdateTopicConfigWithInheritedLocalRetentionTime",
    "RemoteTopicCrudTest.testUpdateTopicConfigWithInheritedLocalRetentionSize",
)
def test_brokers_values_count_where_a_topic_has_none() -> None:
    with pytest.raises(ConfigError, match=r"local\.retention\.ms is 50"):
        check(ON, log_local_retention_ms="50", log_retention_ms="40")
    with pytest.raises(ConfigError, match="compacted"):
        check(ON, log_cleanup_policy="compact")


@pytest.mark.clause("RemoteTopicCrudTest.testUpdateTopicConfigWithDisablingRemoteStorage")
@pytest.mark.parametrize("after", [{"remote.storage.enable": "false"}, {}])
def test_disabling_remote_storage_requires_delete_on_disable(after: Mapping[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"remote\.log\.delete\.on\.disable"):
        check(after, ON)
    check({**after, "remote.log.delete.on.disable": "true"}, ON)
    check(after, {"remote.storage.enable": "false"})
