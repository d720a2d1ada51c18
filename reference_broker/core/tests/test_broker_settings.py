"""Dynamic configs of brokers (KIP-226). The errors are those of a running Kafka 4.1.1."""

from typing import Any

import pytest
from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.static.primitive import i8

from reference_broker.apis.configs import k33_alter_configs, k44_incremental_alter_configs
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.controller_requests import incremental_alter_configs_request
from reference_broker.configuration.broker_config import BROKER_KEYS, BrokerConfig
from reference_broker.configuration.broker_config_fields import IDLE_KEYS
from reference_broker.configuration.setting import WITHOUT_EFFECT, ConfigError, ConfigKey
from reference_broker.core.events import Note
from reference_broker.core.tests.node_world import NodeWorld, batch
from reference_broker.metadata.broker_settings import DYNAMIC, NONE_SET, Layers, amended
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

BROKER, TOPIC = 4, 2
SET, DELETE, APPEND = 0, 1, 2
CLUSTER, OWN = "", "1"
"""Names of the resource: all brokers, and the broker of the tests."""


def alter(
    world: NodeWorld, name: str, setting: str, value: str | None, operation: int = SET, kind: int = BROKER
) -> tuple[str, str]:
    body = incremental_alter_configs_request((name, [(setting, operation, value)], kind))
    (result,) = world.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
    return result.error_code.name, result.error_message or ""


def described(world: NodeWorld, kind: int, name: str, *keys: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(resource_type=i8(kind), resource_name=name, configuration_keys=keys or None)
    body = DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=False)
    (result,) = world.request(ApiKey.DESCRIBE_CONFIGS, 4, body).results
    assert result.error_code == ErrorCode.none
    return {row.name: row for row in result.configs}


def places(row: Any) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms]


def test_changed_config_takes_effect_at_once_and_after_restart() -> None:
    world = NodeWorld()
    world.create("t")
    assert alter(world, CLUSTER, "message.max.bytes", "1000")[0] == "none"
    assert world.produce("t", 0, batch(bytes(2000))).error_code == ErrorCode.message_too_large
    assert alter(world, OWN, "message.max.bytes", "3000")[0] == "none"
    assert world.produce("t", 0, batch(bytes(2000))).error_code == ErrorCode.none
    world.shut_down()
    world.settle()
    again = NodeWorld(world.disk)
    assert again.log("t").config.max_message_bytes == 3000
    assert alter(again, OWN, "message.max.bytes", None, DELETE)[0] == "none"
    assert again.produce("t", 0, batch(bytes(2000))).error_code == ErrorCode.message_too_large
    assert alter(again, CLUSTER, "message.max.bytes", None, DELETE)[0] == "none"
    assert again.produce("t", 0, batch(bytes(2000))).error_code == ErrorCode.none
    assert again.node.broker.config == BrokerConfig()


def test_synonyms_are_in_order_of_precedence() -> None:
    world = NodeWorld(log_retention_ms="4000")
    alter(world, CLUSTER, "log.retention.ms", "3000")
    world.create("t", retention_ms="1000")
    world.create("u")
    alter(world, OWN, "log.retention.ms", "2000")
    of_broker = [("log.retention.ms", value, source) for value, source in (("2000", 2), ("3000", 3), ("4000", 4))]
    of_broker.append(("log.retention.ms", "604800000", 5))
    row = described(world, BROKER, OWN, "log.retention.ms")["log.retention.ms"]
    assert row.value == "2000"
    assert row.config_source == 2
    assert row.read_only is False
    assert places(row) == of_broker
    row = described(world, TOPIC, "t", "retention.ms")["retention.ms"]
    assert (row.config_source, places(row)) == (1, [("retention.ms", "1000", 1), *of_broker])
    row = described(world, TOPIC, "u", "retention.ms")["retention.ms"]
    assert row.value == "2000"
    assert row.config_source == 2
    assert places(row) == of_broker
    rows = described(world, BROKER, CLUSTER)
    assert {name: (row.value, row.config_source, row.read_only) for name, row in rows.items()} == {
        "log.retention.ms": ("3000", 3, False),
        "min.insync.replicas": ("1", 3, False),
    }
    (result,) = [config for config in world.create("v").configs if config.name == "retention.ms"]
    assert (result.value, result.config_source) == ("2000", 2)


def test_topic_only_config_has_no_other_synonyms() -> None:
    world = NodeWorld()
    world.create("t")
    row = described(world, TOPIC, "t", "remote.storage.enable")["remote.storage.enable"]
    assert row.value == "false"
    assert row.config_source == 5
    assert places(row) == []


def test_static_configs_are_read_only() -> None:
    rows = described(NodeWorld(), BROKER, OWN)
    assert {name for name, row in rows.items() if not row.read_only} == DYNAMIC
    assert rows["num.partitions"].read_only


def test_unknown_config_is_stored_and_described_as_sensitive() -> None:
    world = NodeWorld()
    assert alter(world, CLUSTER, "cleanup.policy", "compact") == ("none", "")
    row = described(world, BROKER, OWN, "cleanup.policy")["cleanup.policy"]
    assert (row.value, row.config_source, row.config_type) == (None, 3, 0)
    assert row.is_sensitive
    assert row.read_only
    assert places(row) == [("cleanup.policy", None, 3)]
    assert alter(world, OWN, "cleanup.policy", "delete") == ("none", "")
    row = described(world, BROKER, OWN)["cleanup.policy"]
    assert places(row) == [("cleanup.policy", None, 2), ("cleanup.policy", None, 3)]
    assert places(described(world, BROKER, CLUSTER)["cleanup.policy"]) == [("cleanup.policy", None, 3)]
    for name in (CLUSTER, OWN):
        assert alter(world, name, "cleanup.policy", None, DELETE) == ("none", "")
    assert "cleanup.policy" not in described(world, BROKER, OWN)


@pytest.mark.parametrize(
    ("name", "setting", "value", "error", "text"),
    [
        (OWN, "num.partitions", "3", "invalid_request", "Cannot update these configs dynamically: num.partitions"),
        (CLUSTER, "log.cleaner.enable", "false", "invalid_request", "Cannot update these configs dynamically"),
        (CLUSTER, "listeners", "PLAINTEXT://:1", "invalid_request", "Cannot update these configs dynamically"),
        (OWN, "log.retention.ms", "x", "invalid_request", "log.retention.ms is 'x'"),
        (OWN, "log.retention.ms", None, "invalid_request", "Null value not supported for : log.retention.ms"),
        (CLUSTER, "message.max.bytes", "-1", "invalid_request", "message.max.bytes is -1"),
        (OWN, "producer.id.expiration.ms", "0", "invalid_request", "producer.id.expiration.ms is 0"),
        (OWN, "compression.type", "x", "invalid_request", "compression.type is 'x'"),
        (CLUSTER, "unclean.leader.election.enable", "", "invalid_request", "give true or false"),
        ("2", "log.retention.ms", "1000", "invalid_request", "Unexpected broker id, expected 1"),
        ("x", "log.retention.ms", "1000", "invalid_request", "Unexpected broker id, expected 1"),
        (CLUSTER, "sasl.kerberos.min.time.before.relogin", "1", "invalid_request", "broker id must be specified"),
        (OWN, "min.insync.replicas", "2", "invalid_config", "while ELR is enabled"),
        (CLUSTER, "log.retention.hours", "1", "invalid_request", "Cannot update these configs dynamically"),
        (OWN, "max.connections", "0", "invalid_request", "max.connections is 0"),
        (CLUSTER, "max.connections.per.ip", "0", "invalid_request", "max.connections.per.ip is 0"),
        (CLUSTER, "max.connection.creation.rate", "0", "invalid_request", "max.connection.creation.rate is 0"),
        (CLUSTER, "log.segment.bytes", "100", "invalid_request", "log.segment.bytes is 100"),
        (CLUSTER, "log.cleaner.dedupe.buffer.size", "1000", "invalid_request", "more than 1 MiB for each thread"),
        (OWN, "log.cleaner.threads", "128", "invalid_request", "more than 1 MiB for each thread"),
        (CLUSTER, "log.local.retention.ms", "-1", "invalid_request", "log.local.retention.ms is -1, but log.retention"),
        (OWN, "log.local.retention.ms", str(2**63 - 1), "invalid_request", "but log.retention.ms is 604800000"),
        (OWN, "ssl.keystore.location", "x", "invalid_request", "Unknown broker config name: ssl.keystore.location"),
        (CLUSTER, "x" * 40_000, "x", "invalid_request", "The name of a setting has more than 32767 bytes"),
    ],
)
def test_invalid_config_change_returns_error(name: str, setting: str, value: str | None, error: str, text: str) -> None:
    result = alter(NodeWorld(), name, setting, value)
    assert result[0] == error
    assert text in result[1]


def alter_together(world: NodeWorld, name: str, settings: dict[str, str], kind: int = BROKER) -> tuple[str, str]:
    body = incremental_alter_configs_request(
        (name, [(setting, SET, value) for setting, value in settings.items()], kind)
    )
    (result,) = world.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
    return result.error_code.name, result.error_message or ""


@pytest.mark.parametrize("name", [CLUSTER, OWN])
@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"log.retention.ms": "500", "log.local.retention.ms": "1000"}, "invalid_request"),
        ({"log.retention.ms": "1000", "log.local.retention.ms": "500"}, "none"),
        ({"log.retention.ms": "-1", "log.local.retention.ms": "-1"}, "none"),
        ({"log.retention.bytes": "500", "log.local.retention.bytes": "1000"}, "invalid_request"),
        ({"log.retention.bytes": "500", "log.local.retention.bytes": "-1"}, "invalid_request"),
        ({"log.retention.bytes": "500", "log.local.retention.bytes": "-2"}, "none"),
        ({"log.local.retention.bytes": "1000"}, "none"),
        ({"log.cleaner.dedupe.buffer.size": str(2 << 20), "log.cleaner.threads": "2"}, "invalid_request"),
        ({"log.cleaner.dedupe.buffer.size": str((2 << 20) + 2), "log.cleaner.threads": "2"}, "none"),
        ({"log.cleaner.min.compaction.lag.ms": "5000", "log.cleaner.max.compaction.lag.ms": "400"}, "none"),
    ],
)
def test_inconsistent_configs_are_rejected(name: str, settings: dict[str, str], error: str) -> None:
    assert alter_together(NodeWorld(), name, settings)[0] == error


def test_broker_config_must_be_consistent_with_cluster_default() -> None:
    world = NodeWorld()
    assert alter(world, CLUSTER, "log.retention.ms", "1000")[0] == "none"
    assert alter(world, OWN, "log.local.retention.ms", "1001")[0] == "invalid_request"
    assert alter(world, OWN, "log.local.retention.ms", "1000")[0] == "none"
    assert alter(world, OWN, "log.retention.bytes", "5")[0] == "none"
    assert alter(world, CLUSTER, "log.local.retention.bytes", "6")[0] == "invalid_request"


def test_topic_compaction_lag_must_be_consistent_with_broker_config() -> None:
    world = NodeWorld()
    world.create("t")
    assert alter(world, CLUSTER, "log.cleaner.max.compaction.lag.ms", "400")[0] == "none"
    result = alter(world, "t", "min.compaction.lag.ms", "401", kind=TOPIC)
    assert result == ("invalid_config", "min.compaction.lag.ms is 401, above max.compaction.lag.ms 400: lower it.")
    assert alter(world, "t", "min.compaction.lag.ms", "400", kind=TOPIC)[0] == "none"


def test_append_to_non_list_config_is_rejected() -> None:
    world = NodeWorld()
    assert alter(world, OWN, "log.retention.ms", "1", APPEND)[0] == "invalid_config"
    assert alter(world, OWN, "log.cleanup.policy", "compact", APPEND)[0] == "none"
    assert world.node.broker.config.log_cleanup_policy == "delete,compact"
    world.create("t")
    assert alter(world, "t", "leader.replication.throttled.replicas", "0:1", APPEND, TOPIC)[0] == "none"
    assert alter(world, "t", "leader.replication.throttled.replicas", "0:2", APPEND, TOPIC)[0] == "none"
    row = described(world, TOPIC, "t", "leader.replication.throttled.replicas")
    assert row["leader.replication.throttled.replicas"].value == "0:1,0:2"


@pytest.mark.parametrize(("kind", "text"), [(8, "BROKER_LOGGER"), (16, "CLIENT_METRICS"), (32, "GROUP"), (3, "3")])
def test_resource_type_without_configs_is_named_in_error(kind: int, text: str) -> None:
    world = NodeWorld()
    error, message = alter(world, OWN, "x", "1", kind=kind)
    assert error == "invalid_request"
    assert text in message
    resource = DescribeConfigsResource(resource_type=i8(kind), resource_name=OWN, configuration_keys=None)
    body = DescribeConfigsRequest(resources=(resource,), include_synonyms=False, include_documentation=False)
    (result,) = world.request(ApiKey.DESCRIBE_CONFIGS, 4, body).results
    assert result.error_code == ErrorCode.invalid_request
    assert text in result.error_message


def is_another_value(key: ConfigKey, text: str) -> bool:
    try:
        return key.parse(text) != key.default
    except ConfigError:
        return False


@pytest.mark.thorough
@pytest.mark.parametrize("setting", sorted(DYNAMIC - {*IDLE_KEYS, "min.insync.replicas"}))
def test_each_dynamic_config_reaches_node_and_logs(setting: str) -> None:
    world = NodeWorld()
    world.create("t")
    key = BROKER_KEYS[setting]
    wanted = next(
        text for text in (*key.choices, "true", "false", "1234567", "9", "7", "0.25") if is_another_value(key, text)
    )
    before = world.log("t").config
    assert alter(world, CLUSTER, setting, wanted) == ("none", "")
    changed = world.node.broker.config
    assert changed.value(setting) == key.parse(wanted) != key.default
    assert world.log("t").config == changed.log_config({})
    assert (world.log("t").config != before) == (BrokerConfig().log_config({}) != changed.log_config({}))


def test_cluster_default_cleanup_policy_compacts_topics() -> None:
    world = NodeWorld()
    world.create("t")
    world.create("u", cleanup_policy="delete")
    alter(world, CLUSTER, "log.cleanup.policy", "compact")
    assert list(world.node._cleaner.topics.names) == ["t"]
    alter(world, CLUSTER, "log.cleanup.policy", None, DELETE)
    assert list(world.node._cleaner.topics.names) == []


@pytest.mark.clause("ReplicaManagerTest.testTransactionVerificationDynamicDisablement")
def test_transaction_verification_is_disabled_and_enabled_dynamically() -> None:
    world = NodeWorld()
    world.create("t")
    acknowledged = []
    for enabled, producer_id in (("true", 7), ("false", 8), ("true", 9)):
        alter(world, OWN, "transaction.partition.verification.enable", enabled)
        assert world.log("t").verification.is_demanded == (enabled == "true")
        sent = batch(producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        topics = [ProduceTopic("t", NO_TOPIC_ID, [ProducePartition(0, sent)])]
        body = world.request(ApiKey.PRODUCE, 9, ProduceRequest(-1, 1000, topics, transactional_id="x"))
        acknowledged.append(body.responses[0].partitions[0].error_code == ErrorCode.none)
    assert acknowledged == [False, True, False]


def test_unclean_elections_follow_cluster_default() -> None:
    world = NodeWorld()
    assert not world.node.broker.controller._plan_context().config.unclean_leader_election_enable
    alter(world, CLUSTER, "unclean.leader.election.enable", "true")
    assert world.node.broker.controller._plan_context().config.unclean_leader_election_enable


def test_config_without_effect_is_accepted_and_noted_once() -> None:
    world = NodeWorld()
    for value in ("2", "4"):
        assert alter(world, CLUSTER, "log.cleaner.threads", value)[0] == "none"
    notes = [dict(effect.fields) for effect in world.effects if isinstance(effect, Note)]
    assert [note["setting"] for note in notes if "setting" in note] == ["log.cleaner.threads"]
    assert set(IDLE_KEYS) <= set(WITHOUT_EFFECT)


def test_unknown_stored_config_value_is_ignored() -> None:
    config = BrokerConfig()
    layers = Layers({"log.retention.ms": "many", "gone.setting": "1"}, {"num.partitions": "9", "log.roll.ms": "77"})
    live = amended(config, layers)
    assert (live.log_retention_ms, live.num_partitions, live.log_roll_ms) == (config.log_retention_ms, 1, 77)
    assert amended(config, Layers(NONE_SET, NONE_SET)) is config


@pytest.mark.parametrize("module", [k33_alter_configs, k44_incremental_alter_configs])
def test_config_of_other_broker_is_rejected_and_others_are_forwarded(module: Any) -> None:
    world = AdminWorld()
    world.metadata.lose(to=2)
    if module is k44_incremental_alter_configs:
        body: Any = incremental_alter_configs_request(
            *((name, [("log.retention.ms", SET, "5")], BROKER) for name in ("7", "", "1", "x"))
        )
    else:
        resources = tuple(
            AlterConfigsResource(resource_type=i8(BROKER), resource_name=name, configs=())
            for name in ("7", "", "1", "x")
        )
        body = AlterConfigsRequest(resources=resources, validate_only=False)
    call = world.send(module, body)
    ((_, _, _, _, sent, _, replied, _),) = world.ports.sent
    assert [resource.resource_name for resource in sent.resources] == ["", "1"]
    replied(module._response([module._result(resource, None) for resource in sent.resources]))
    (response,) = call.responses
    assert [(each.resource_name, each.error_code.name) for each in response.responses] == [
        ("7", "invalid_request"),
        ("", "none"),
        ("1", "none"),
        ("x", "invalid_request"),
    ]
