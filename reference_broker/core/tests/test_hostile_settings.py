"""Valid but costly config values: they are stored in their plain form, or rejected."""

from typing import Any

import pytest

from reference_broker.controller.write_operations import raise_bug
from reference_broker.core.tests.hostile_client import HostileClient
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.metadata.records import ConfigRecord
from reference_broker.metadata.tests.metadata_world import AnyChange
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

TOPIC = 2


def alter(client: HostileClient, name: str, value: str) -> Any:
    configs = [{"name": name, "config_operation": 0, "value": value}]
    resources = [{"resource_type": TOPIC, "resource_name": "t", "configs": configs}]
    return client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources).responses[0]


def described(client: HostileClient, name: str) -> str:
    resources = [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": (name,)}]
    result = client.request(ApiKey.DESCRIBE_CONFIGS, 1, resources=resources).results[0]
    return str(result.configs[0].value)


@pytest.fixture
def client() -> HostileClient:
    world = NodeWorld()
    world.create("t")
    return HostileClient(world)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("retention.ms", " " * 30_000 + "1000000", "1000000"),
        ("retention.ms", "0" * 4000 + "7", "7"),
        ("min.cleanable.dirty.ratio", "0.50", "0.5"),
        ("cleanup.policy", "delete ,  compact", "delete,compact"),
        ("unclean.leader.election.enable", "TRUE", "true"),
    ],
)
def test_config_value_is_stored_in_plain_form(client: HostileClient, name: str, value: str, kept: str) -> None:
    assert alter(client, name, value).error_code == ErrorCode.none
    assert described(client, name) == kept
    assert client.world.node.broker.controller.image.topic_configs("t")[name] == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", " " * 40_000 + "1000000"),
        ("retention.ms", "9" * 30_000),
        ("retention.ms", "1_000"),
        ("cleanup.policy", ",".join(["delete"] * 8000)),
    ],
)
def test_config_value_too_long_for_response_is_rejected(client: HostileClient, name: str, value: str) -> None:
    assert alter(client, name, value).error_code == ErrorCode.invalid_config
    client.world.create("u", 1, **{name.replace(".", "_"): value})
    assert "u" not in client.world.node.broker.controller.image.topics


def test_config_value_of_older_release_is_described_in_plain_form(client: HostileClient) -> None:
    record = ConfigRecord(resource_type=TOPIC, resource_name="t", name="retention.ms", value=" " * 40_000 + "1000000")
    results: list[Any] = []
    client.world.node.broker.controller.append_write_event(
        AnyChange("change", lambda: [record]), results.append, raise_bug
    )
    client.world.settle_until(lambda: bool(results))
    assert results == [None]
    assert described(client, "retention.ms") == "1000000"


def test_long_config_name_gets_no_suggestion(client: HostileClient) -> None:
    response = alter(client, "retention." * 3000, "1")
    assert response.error_code == ErrorCode.invalid_config
    assert "did you mean" not in response.error_message
